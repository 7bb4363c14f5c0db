//! How a consumer is put together.

use std::{future::Future, sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use tokio::sync::watch;

use super::{
    routes::{Routes, Work},
    runtime::{self, Runtime},
    status::{ConsumerStatus, Status},
};
use crate::{
    CheckedHandler, Error, Handler, Idem, Selector, Source, Summary, describe_metrics,
    lease::LeasedHandler,
};

/// Fetches messages from a [`Source`], processes each once, and tells the broker what became of it.
///
/// ```no_run
/// # async fn service<S: idem_client::Source>(pool: deadpool_postgres::Pool, source: S) -> Result<(), idem_client::Error> {
/// use idem_client::{Consumer, Message, Tx, terminated};
///
/// let summary = Consumer::new(pool, source)
///     .handle("orders.reserve-inventory", |tx: Tx, message: Message| async move {
///         let order: i64 = message.json()?;
///         tx.execute("UPDATE stock SET reserved = reserved + 1 WHERE item = $1", &[&order]).await?;
///         Ok(vec![])
///     })
///     .concurrency(16)
///     .run(terminated())
///     .await?;
/// println!("{summary:?}");
/// # Ok(()) }
/// ```
///
/// A failed message goes back to its broker, later each time, and is rejected after
/// [`max_deliveries`](Self::max_deliveries). A rejected message is kept in `idem.dead_letter`,
/// unless the source names another place, and handled here again after `idem_requeue`: one short
/// statement a second looks for such messages of each destination. When the database is away,
/// messages go back, nothing is fetched, and the database is asked now and then whether it is there
/// again.
#[must_use = "nothing is fetched before `run`"]
pub struct Consumer<S> {
    pub(super) pool: Pool,
    pub(super) source: S,
    pub(super) idem: Idem,
    pub(super) routes: Routes,
    pub(super) settings: Settings,
    pub(super) status: Status,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) concurrency: usize,
    /// The source decides unless given.
    pub(super) is_ordered: Option<bool>,
    pub(super) batches: Batches,
    pub(super) max_bytes: usize,
    /// A share of `max_bytes` unless given.
    max_batch_bytes: Option<usize>,
    pub(super) max_deliveries: u32,
    pub(super) first_pause: Duration,
    pub(super) longest_pause: Duration,
    pub(super) grace: Duration,
}

/// How many messages share a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batches {
    /// At most so many.
    pub max: usize,
    /// How long to wait for more, after the first one.
    pub linger: Duration,
}

impl Batches {
    const SINGLES: Self = Self {
        max: 1,
        linger: Duration::ZERO,
    };
}

/// How many bytes a consumer holds unless a setting says otherwise.
const MAX_BYTES: usize = 64 * 1024 * 1024;

impl<S: Source> Consumer<S> {
    /// A consumer with the defaults: eight messages at a time, in no order, each in a transaction
    /// of its own.
    pub fn new(pool: Pool, source: S) -> Self {
        Self {
            pool,
            source,
            idem: Idem::default(),
            routes: Routes::default(),
            settings: Settings {
                concurrency: 8,
                is_ordered: None,
                batches: Batches::SINGLES,
                max_bytes: MAX_BYTES,
                max_batch_bytes: None,
                max_deliveries: 10,
                first_pause: Duration::from_millis(200),
                longest_pause: Duration::from_secs(30),
                grace: Duration::from_secs(30),
            },
            status: Status::new(),
        }
    }

    /// What keeps the consumer from working, now and later: for a health check of the process.
    pub fn status(&self) -> watch::Receiver<ConsumerStatus> {
        self.status.subscribe()
    }

    /// The policies; [`Idem::default`] unless given.
    pub fn idem(mut self, idem: Idem) -> Self {
        self.idem = idem;
        self
    }

    /// Handles the messages that no [route](Self::route) takes, as this destination. A consumer has
    /// one such handler at most.
    pub fn handle(mut self, destination: &str, handler: impl Handler) -> Self {
        self.routes.add_fallback(destination, Work::handle(handler));
        self
    }

    /// Stores what no [route](Self::route) takes in the durable inbox of a destination, and
    /// acknowledges: the broker is relieved at once, and a consumer of a
    /// [`DurableSource`](crate::durable::DurableSource) handles it later.
    ///
    /// What was received or handled before is a duplicate. In [batches](Self::batches) many are
    /// stored in one statement. The id is the policy's; a message without one that the policy lets
    /// pass is stored under a random one.
    pub fn store(mut self, destination: &str) -> Self {
        self.routes.add_fallback(destination, Work::Store);
        self
    }

    /// A [`route`](Self::route) whose messages are [stored](Self::store) in the inbox of their
    /// destination.
    pub fn store_route(mut self, selector: Selector, destination: &str) -> Self {
        self.routes.add(selector, destination, Work::Store);
        self
    }

    /// The same for a handler that works without a transaction, under a lease that is renewed
    /// meanwhile: see [`Idem::process_leased`].
    ///
    /// Its failures are counted by the database, which says when the message comes again, and keeps
    /// those that fail too often among its dead letters: [`max_deliveries`](Self::max_deliveries)
    /// and [`back_off`](Self::back_off) are not for it.
    pub fn handle_leased(mut self, destination: &str, handler: impl LeasedHandler) -> Self {
        self.routes.add_fallback(destination, Work::leased(handler));
        self
    }

    /// The same for a handler that works without a transaction and without a lease: what is known
    /// is skipped before it works, and the message is claimed with its effects after it has
    /// succeeded. **Not exactly once**: see [`Idem::process_checked`].
    pub fn handle_checked(mut self, destination: &str, handler: impl CheckedHandler) -> Self {
        self.routes
            .add_fallback(destination, Work::checked(handler));
        self
    }

    /// Handles the messages that `selector` takes, as this destination. The first route that takes
    /// a message handles it; two routes of the same topic or type are an error.
    ///
    /// A message that no route takes goes to the fallback: [`handle`](Self::handle),
    /// [`store`](Self::store), [`handle_leased`](Self::handle_leased) or
    /// [`handle_checked`](Self::handle_checked). Without one it is rejected, with a warning.
    pub fn route(mut self, selector: Selector, destination: &str, handler: impl Handler) -> Self {
        self.routes
            .add(selector, destination, Work::handle(handler));
        self
    }

    /// A route whose handler works [under a lease](Self::handle_leased).
    pub fn route_leased(
        mut self,
        selector: Selector,
        destination: &str,
        handler: impl LeasedHandler,
    ) -> Self {
        self.routes
            .add(selector, destination, Work::leased(handler));
        self
    }

    /// A route whose handler works without a lease, [checked](Self::handle_checked) and claimed
    /// afterwards.
    pub fn route_checked(
        mut self,
        selector: Selector,
        destination: &str,
        handler: impl CheckedHandler,
    ) -> Self {
        self.routes
            .add(selector, destination, Work::checked(handler));
        self
    }

    /// How many transactions are open at a time; 8 unless given. The pool should have one
    /// connection more: the last one is set aside for short statements.
    pub fn concurrency(mut self, transactions: usize) -> Self {
        self.settings.concurrency = transactions;
        self
    }

    /// Whether messages of one key are handled one after the other, in the order of their delivery;
    /// messages of other keys and without a key go on beside them. Unless given, they are for a
    /// source that [delivers them in order](Source::keeps_order_of_keys), as Kafka's.
    ///
    /// What fails is then tried again in place, since giving it back would reorder; its successors
    /// wait meanwhile, and count among the messages that are held. A batch has one message of a key
    /// at most.
    pub fn ordered_by_key(mut self, is_ordered: bool) -> Self {
        self.settings.is_ordered = Some(is_ordered);
        self
    }

    /// Lets several messages share a transaction: one round trip claims them, one commits them.
    /// When one of them fails, the others are processed by themselves.
    pub fn batches(mut self, batches: Batches) -> Self {
        self.settings.batches = batches;
        self
    }

    /// How many bytes of payloads and headers are held at once, at most 4 GiB; 64 MiB unless given.
    /// Beyond that nothing is fetched until messages are settled. One fetched message waits,
    /// because its size is known only then. A message that is larger than the limit is handled
    /// alone. While messages wait in place for their next attempt and no worker has one, one more
    /// is let in.
    ///
    /// What the broker sends ahead is not counted: the settings of the source limit it.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.settings.max_bytes = bytes;
        self
    }

    /// How many bytes of payloads and headers a [batch](Self::batches) has; unless given, an equal
    /// share of [`max_bytes`](Self::max_bytes) for each of the transactions that are open at a
    /// time. A message that is larger is a batch of its own.
    pub fn max_batch_bytes(mut self, bytes: usize) -> Self {
        self.settings.max_batch_bytes = Some(bytes);
        self
    }

    /// After so many failed deliveries a message is rejected: kept in `idem.dead_letter`, or at the
    /// place that the source names; 10 unless given. A message that was returned without a failure
    /// has not failed: the environment failed, or the consumer was stopped. Most brokers count
    /// these returns, too (RabbitMQ's quorum queues do not since 4.3), so each process counts the
    /// failures that it has seen.
    pub fn max_deliveries(mut self, deliveries: u32) -> Self {
        self.settings.max_deliveries = deliveries;
        self
    }

    /// How long a failed message waits: the first time, and at most. Each wait is twice the one
    /// before, plus jitter of up to as much again. 200 ms and 30 s unless given.
    pub fn back_off(mut self, first: Duration, longest: Duration) -> Self {
        self.settings.first_pause = first;
        self.settings.longest_pause = longest;
        self
    }

    /// How long a shutdown waits for what is being processed; 30 s unless given. What has not ended
    /// by then is rolled back and given back.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.settings.grace = grace;
        self
    }

    /// Consumes until `shutdown` completes: then nothing is fetched any more, what is being
    /// processed is finished and settled, and what waits is given back. Every other end is an
    /// error:
    ///
    /// - [`Error::Invalid`] before anything is fetched: there is no handler, two handlers take the
    ///   same messages, a destination has no valid name or a policy that its handler cannot keep,
    ///   or a number is zero.
    /// - [`Error::SourceEnded`]: the source delivers no more messages. All that it had delivered is
    ///   settled.
    /// - [`Error::WorkerPanicked`]: code of the source panicked where no message can be blamed. The
    ///   other workers have finished what they processed, and what they held is given back.
    ///
    /// Dropping the future rolls back what is open and settles nothing.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<Summary, Error> {
        self.settings.check()?;
        let runtime = Runtime::new(self)?;
        describe_metrics();
        runtime::run(Arc::new(runtime), shutdown).await
    }
}

impl Settings {
    pub(super) fn max_batch_bytes(&self) -> usize {
        let share = self.max_bytes / self.concurrency.max(1);
        self.max_batch_bytes.unwrap_or(share.max(1))
    }

    fn check(&self) -> Result<(), Error> {
        for (number, name) in [
            (self.concurrency, "concurrency"),
            (self.batches.max, "the size of a batch"),
            (self.max_bytes, "max_bytes"),
            (self.max_batch_bytes(), "max_batch_bytes"),
            (self.max_deliveries as usize, "max_deliveries"),
        ] {
            if number == 0 {
                return Err(Error::Invalid(format!("{name} must be at least 1")));
            }
        }
        Ok(())
    }
}
