//! The builder of a consumer.

use std::{future::Future, sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use tokio::sync::watch;

use super::{
    routes::{RouteAction, Routes},
    run::{self, Runtime},
    settings::{Batches, Settings},
    status::{ConsumerStatus, Status},
};
use crate::{
    Error, Handled, Idem, Message, Source, Tx,
    backoff::Pauses,
    consumer::{Selector, Summary},
    describe_metrics,
    handler::erase,
    lease::LeaseContext,
};

/// Fetches messages from a [`Source`], processes each message once, and settles it at its broker.
///
/// ```no_run
/// # async fn service<S: idem_runtime::Source>(
/// #     pool: deadpool_postgres::Pool, source: S,
/// # ) -> Result<(), idem_runtime::Error> {
/// use idem_runtime::{Consumer, terminated};
///
/// let summary = Consumer::new(pool, source)
///     .handle("orders.reserve-inventory", |tx, message| async move {
///         let order: i64 = message.json()?;
///         tx.execute("UPDATE stock SET reserved = reserved + 1 WHERE item = $1", &[&order])
///             .await?;
///         Ok(vec![])
///     })
///     .concurrency(16)
///     .run(terminated())
///     .await?;
/// println!("{summary:?}");
/// # Ok(()) }
/// ```
///
/// A failed message returns to its broker and is retried with a growing delay. It is rejected after
/// [`max_deliveries`](Self::max_deliveries) failures. A rejected message is kept in
/// `idem.dead_letter`, unless the source has a dead-letter target of its own. After `idem_requeue`
/// this consumer handles the message again: it reads the requeued messages of each destination once
/// a second, with one short statement. While the database is unavailable, the consumer releases its
/// messages, fetches nothing, and probes the database with a back-off.
#[must_use = "nothing is fetched before `run`"]
pub struct Consumer<S> {
    pool: Pool,
    source: S,
    idem: Idem,
    routes: Routes,
    settings: Settings,
    status: Status,
}

/// The default number of bytes that a consumer holds.
const MAX_BYTES: usize = 64 * 1024 * 1024;

impl<S: Source> Consumer<S> {
    /// Creates a consumer with the default settings: eight concurrent transactions with one message
    /// each, in no order.
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
                pauses: Pauses::from_millis(200, 30_000),
                grace: Duration::from_secs(30),
            },
            status: Status::new(),
        }
    }

    /// Returns a receiver of the consumer's current status. It works before and during the run. Use
    /// it for the health check of a process.
    pub fn status(&self) -> watch::Receiver<ConsumerStatus> {
        self.status.subscribe()
    }

    /// Sets the policies. The default is [`Idem::default`].
    pub fn idem(mut self, idem: Idem) -> Self {
        self.idem = idem;
        self
    }

    /// Sets the handler for the messages that match no [route](Self::route). These messages are
    /// claimed under this destination. A consumer has at most one such handler.
    ///
    /// The handler works in the transaction that claims the message. It must drop `Tx` before it
    /// returns: if it keeps `Tx`, processing fails with [`Error::TransactionKept`] and the
    /// transaction is rolled back. [`Tx`] says what else a handler must not do in its transaction.
    pub fn handle<F, Fut>(self, destination: &str, handler: F) -> Self
    where
        F: Fn(Tx, Message) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        self.with_route(None, destination, RouteAction::Handle(erase(handler)))
    }

    /// Stores the messages that match no [route](Self::route) in the durable inbox of a
    /// destination, and acknowledges them. So the messages leave the broker at once. A consumer of
    /// a [`DurableSource`](crate::inbox::DurableSource) handles the messages later.
    ///
    /// A message that was received or handled before is a duplicate. With [batches](Self::batches),
    /// one statement stores many messages. The policy of the destination determines the id. A
    /// message without an id is stored under a random id if the policy accepts such messages.
    pub fn store(self, destination: &str) -> Self {
        self.with_route(None, destination, RouteAction::Store)
    }

    /// Adds a [`route`](Self::route) that [stores](Self::store) its messages in the inbox of
    /// `destination`.
    pub fn store_route(self, selector: Selector, destination: &str) -> Self {
        self.with_route(Some(selector), destination, RouteAction::Store)
    }

    /// Handles the messages that match no [route](Self::route) without a transaction, under a lease
    /// that is renewed while the handler works: see [`Idem::process_leased`].
    ///
    /// The database counts the failures, schedules the retries, and stores messages that failed too
    /// often as dead letters. [`max_deliveries`](Self::max_deliveries) and
    /// [`back_off`](Self::back_off) do not apply.
    pub fn handle_leased<F, Fut>(self, destination: &str, handler: F) -> Self
    where
        F: Fn(LeaseContext, Message) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        self.with_route(None, destination, RouteAction::Leased(erase(handler)))
    }

    /// Handles the messages that match no [route](Self::route) without a transaction and without a
    /// lease. A message that was claimed before is skipped. The claim and the effects are written
    /// after the handler has succeeded. **Not exactly once**: see [`Idem::process_checked`].
    pub fn handle_checked<F, Fut>(self, destination: &str, handler: F) -> Self
    where
        F: Fn(Message) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        self.with_route(None, destination, RouteAction::checked(handler))
    }

    /// Handles the messages that `selector` selects, and claims them under this destination. A
    /// message goes to the first route that matches it. Two routes for the same topic or type are
    /// an error.
    ///
    /// A message that no route matches goes to the fallback: [`handle`](Self::handle),
    /// [`store`](Self::store), [`handle_leased`](Self::handle_leased) or
    /// [`handle_checked`](Self::handle_checked). Without a fallback the consumer rejects the
    /// message and logs a warning.
    pub fn route<F, Fut>(self, selector: Selector, destination: &str, handler: F) -> Self
    where
        F: Fn(Tx, Message) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        self.with_route(
            Some(selector),
            destination,
            RouteAction::Handle(erase(handler)),
        )
    }

    /// Adds a route with a handler that works [under a lease](Self::handle_leased).
    pub fn route_leased<F, Fut>(self, selector: Selector, destination: &str, handler: F) -> Self
    where
        F: Fn(LeaseContext, Message) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        self.with_route(
            Some(selector),
            destination,
            RouteAction::Leased(erase(handler)),
        )
    }

    /// Adds a route with a handler that works without a lease. The consumer
    /// [checks](Self::handle_checked) each message before the handler runs, and claims the message
    /// after the handler has succeeded.
    pub fn route_checked<F, Fut>(self, selector: Selector, destination: &str, handler: F) -> Self
    where
        F: Fn(Message) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        self.with_route(Some(selector), destination, RouteAction::checked(handler))
    }

    fn with_route(
        mut self,
        selector: Option<Selector>,
        destination: &str,
        action: RouteAction,
    ) -> Self {
        self.routes.add(selector, destination, action);
        self
    }

    /// Sets the number of concurrent transactions; 8 by default. Give the pool one more connection
    /// than this, because one connection is reserved for short statements.
    pub fn concurrency(mut self, transactions: usize) -> Self {
        self.settings.concurrency = transactions;
        self
    }

    /// Sets whether messages of one key are handled one after the other, in the order of their
    /// delivery. Messages of other keys and without a key are handled concurrently. By default the
    /// order is kept if the source [delivers in order](Source::keeps_order_of_keys), as the source
    /// for Kafka does.
    ///
    /// A failed message is then retried in place, because a return to the broker would change the
    /// order. The later messages of its key wait in the consumer and count among the held messages.
    /// A batch has at most one message of each key.
    pub fn ordered_by_key(mut self, is_ordered: bool) -> Self {
        self.settings.is_ordered = Some(is_ordered);
        self
    }

    /// Lets several messages share a transaction: one round trip claims all messages of the batch,
    /// and one more round trip commits them. When a message fails, the transaction is rolled back,
    /// and the messages of the batch are processed one by one.
    pub fn batches(mut self, batches: Batches) -> Self {
        self.settings.batches = batches;
        self
    }

    /// Sets the number of bytes of payloads and headers that the consumer holds at once: 64 MiB by
    /// default, at most 4 GiB. When this limit is reached, nothing is fetched until messages are
    /// settled. One fetched message may wait outside of the limit, because its size is known only
    /// after the fetch. A message that is larger than the limit is handled alone. When no worker
    /// has a message and messages wait in place for their next attempt, one more message is
    /// admitted above the limit.
    ///
    /// Messages that the broker sends ahead are not counted: the settings of the source limit them.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.settings.max_bytes = bytes;
        self
    }

    /// Sets the number of bytes of payloads and headers in a [batch](Self::batches). The default is
    /// [`max_bytes`](Self::max_bytes) divided by the number of concurrent transactions. A larger
    /// message is a batch of its own.
    pub fn max_batch_bytes(mut self, bytes: usize) -> Self {
        self.settings.max_batch_bytes = Some(bytes);
        self
    }

    /// Sets the number of failed deliveries after which a message is rejected; 10 by default. A
    /// rejected message is kept in `idem.dead_letter`, or at the dead-letter target of the source.
    ///
    /// A release because the environment failed or the consumer stopped is not a failure. Most
    /// brokers count these releases too (quorum queues of RabbitMQ do not since version 4.3). With
    /// such a broker, each process counts only the failures that it has seen itself.
    pub fn max_deliveries(mut self, deliveries: u32) -> Self {
        self.settings.max_deliveries = deliveries;
        self
    }

    /// Sets the first and the longest delay before a failed message is retried; 200 ms and 30 s by
    /// default. Each delay is twice the previous delay. Jitter lengthens a delay by up to 100 %.
    ///
    /// Values below 1 ms count as 1 ms, and values above one day as one day.
    pub fn back_off(mut self, first: Duration, longest: Duration) -> Self {
        self.settings.pauses = Pauses { first, longest };
        self
    }

    /// Sets how long a shutdown waits for running handlers; 30 s by default. After that, handlers
    /// that still run are rolled back and their messages are released.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.settings.grace = grace;
        self
    }

    /// Consumes messages until `shutdown` completes. The consumer then fetches nothing more,
    /// finishes and settles the messages that are being processed, and releases the messages that
    /// wait. If the consumer ends for another reason, it returns an error:
    ///
    /// - [`Error::Invalid`], before anything is fetched: there is no handler, two handlers take the
    ///   same messages, the name of a destination is invalid, a policy does not fit its handler, or
    ///   a number is zero.
    /// - [`Error::SourceEnded`]: the source delivers no more messages. All delivered messages are
    ///   settled.
    /// - [`Error::WorkerPanicked`]: code of the source panicked outside the processing of a
    ///   message. The other workers have finished their messages, and the waiting messages are
    ///   released.
    ///
    /// Dropping the future rolls back open transactions and settles nothing.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<Summary, Error> {
        let Self {
            pool,
            source,
            idem,
            settings,
            routes,
            status,
        } = self;
        settings.check()?;
        let runtime = Runtime::new(pool, source, idem, settings, routes, status)?;
        describe_metrics();
        run::run(Arc::new(runtime), shutdown).await
    }
}
