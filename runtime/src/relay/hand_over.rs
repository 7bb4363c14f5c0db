//! Hands effects over to the durable inboxes of the same database.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use deadpool_postgres::Pool;
use idem_client::relay;
use tokio::{
    select,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::{
    commit_notifier::CommitNotifier,
    errors::{is_final, is_gone},
    recreated::{Counted, Ended, partitions},
    reporter::Reporter,
    serving::Serving,
    settings::{AWAY, MAX_BYTES, RECOUNT},
    status::Status,
};
use crate::{Error, backoff::Backoff, connection::Checkout, describe_metrics};

/// The first and the longest sleep of an idle partition without a notification.
const IDLE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

/// Hands effects over to the durable inboxes of the same database. Each destination receives the
/// effects of the topic with the same name, and receives effects of one key in their order. No
/// broker and no handler takes part: see [`DurableSource`](crate::inbox::DurableSource).
///
/// An effect is received and acknowledged in one transaction, and the inbox identifies it by its
/// message id. So each effect is received exactly once, even if several processes hand over
/// effects. Create a separate relay for the hand-over
/// ([`create_relay`](idem_client::relay::create_relay)): the hand-over skips effects of other
/// topics, and other relays publish them.
///
/// ```no_run
/// # async fn run(pool: deadpool_postgres::Pool) -> Result<(), idem_runtime::Error> {
/// use idem_runtime::{relay::HandOver, terminated};
///
/// let passed = HandOver::new(pool, "inboxes", ["orders.bill", "orders.remind"])
///     .run(terminated())
///     .await?;
/// println!("{passed} effects");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is handed over before `run`"]
pub struct HandOver {
    pool: Pool,
    relay: String,
    topics: Vec<String>,
    batch: i32,
    max_bytes: i64,
    grace: Duration,
}

impl HandOver {
    /// Creates a hand-over of the effects of these topics with this relay.
    pub fn new(
        pool: Pool,
        relay: impl Into<String>,
        topics: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self {
            pool,
            relay: relay.into(),
            topics: topics.into_iter().map(Into::into).collect(),
            batch: 1000,
            max_bytes: MAX_BYTES,
            grace: Duration::from_secs(5),
        }
    }

    /// Sets the number of effects that share a transaction; 1,000 by default.
    pub fn batch(mut self, effects: u32) -> Self {
        self.batch = i32::try_from(effects).unwrap_or(i32::MAX);
        self
    }

    /// Sets the number of bytes of payloads and headers in a transaction, at most 1 GB; 16 MiB by
    /// default. The first effect is handed over whatever its size.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self
    }

    /// Hands over effects until `shutdown` completes. Returns the number of effects that were
    /// handed over or skipped.
    ///
    /// Failures of the environment are retried: the database is unavailable, the relay does not
    /// exist, the role lacks its grant, or the extension is not installed. Errors are returned when
    /// waiting cannot help: a setting is out of range, or sessions are not READ COMMITTED. Dropping
    /// the future stops at once and loses nothing.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<u64, Error> {
        describe_metrics();
        let mut shutdown = pin!(shutdown);
        let reporter = Reporter::new(&self.relay, Status::new());
        let (shared, mut passed) = (Arc::new(self), 0);
        loop {
            let relay = &shared.relay;
            let partitions = select! {
                partitions = partitions(&shared.pool, relay, &reporter) => partitions?,
                () = &mut shutdown => return Ok(passed),
            };
            info!(relay, partitions, "the hand-over of effects has started");
            match shared
                .serve(partitions, &reporter, shutdown.as_mut(), &mut passed)
                .await?
            {
                Ended::Recreated => reporter.partitions_are_gone(),
                Ended::Requested => return Ok(passed),
            }
        }
    }

    /// Serves all partitions until `shutdown` completes or the number of partitions changes.
    async fn serve(
        self: &Arc<Self>,
        partitions: i32,
        reporter: &Reporter,
        shutdown: Pin<&mut impl Future<Output = ()>>,
        passed: &mut u64,
    ) -> Result<Ended, Error> {
        let (commit_notifier, stop) = (Arc::new(CommitNotifier::new()), CancellationToken::new());
        let mut tasks = JoinSet::new();
        for partition in 0..partitions {
            let reporter = reporter.of_partition(partition);
            tasks.spawn(Arc::clone(self).work(
                partition,
                reporter,
                Arc::clone(&commit_notifier),
                stop.clone(),
            ));
        }
        let serving = Serving {
            counted: Counted {
                pool: &self.pool,
                relay: &self.relay,
                partitions,
            },
            recount: RECOUNT,
            commit_notifier: &commit_notifier,
            stop,
            tasks,
        };
        let error_of = |(count, ended): (u64, Result<(), Error>)| {
            *passed += count;
            ended.err()
        };
        serving.ended(shutdown, error_of).await
    }

    async fn work(
        self: Arc<Self>,
        partition: i32,
        reporter: Reporter,
        commit_notifier: Arc<CommitNotifier>,
        stop: CancellationToken,
    ) -> (u64, Result<(), Error>) {
        let (mut idle, mut away) = (Backoff::new(IDLE.0, IDLE.1), Backoff::new(AWAY.0, AWAY.1));
        let mut rung = commit_notifier.listen();
        let mut passed = 0;
        while !stop.is_cancelled() {
            // Every commit after this line causes a notification, whether or not the next statement
            // finds its effects. So no commit is missed.
            rung.mark_unchanged();
            let grace_ended = async {
                stop.cancelled().await;
                sleep(self.grace).await;
            };
            let handed_over = select! {
                handed_over = self.hand_over(partition) => handed_over,
                () = grace_ended => break,
            };
            match reporter.step(handed_over) {
                Ok(0) => {
                    away.reset();
                    let _idle = commit_notifier.idle();
                    select! {
                        () = stop.cancelled() => {}
                        _ = rung.changed() => idle.reset(),
                        () = sleep(idle.next()) => {}
                    }
                }
                Ok(count) => {
                    passed += u64::try_from(count).unwrap_or(0);
                    away.reset();
                    idle.reset();
                }
                Err(error) if is_final(&error) || is_gone(&error) => return (passed, Err(error)),
                Err(_) => drop(timeout(away.next(), stop.cancelled()).await),
            }
        }
        (passed, Ok(()))
    }

    /// Hands over one batch. When the future is dropped, its connection is closed. The server then
    /// rolls the transaction back, unless it has already committed.
    async fn hand_over(&self, partition: i32) -> Result<i32, Error> {
        let checkout = Checkout::take(&self.pool).await?;
        // There is no time limit: the statement may wait for the transactions of claimers, which
        // take as long as their handlers.
        let count = relay::hand_over(
            &**checkout.client(),
            &self.relay,
            &self.topics,
            partition,
            self.batch,
            self.max_bytes,
        )
        .await;
        checkout.end(count)
    }
}
