//! The relay as a whole: settings, start and stop.

use std::{future::Future, sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use tokio::sync::watch;
use tracing::info;

use super::{
    Publisher, RelayStatus, RelaySummary,
    partition::Partition,
    reporter::Reporter,
    serving::{PartitionTask, Serving},
    settings::{RECOUNT, Settings, defaults},
    statements::RelayStatements,
};
use crate::{Error, backoff::Pauses};

/// Publishes the effects of a database: leases batches, passes them to a [`Publisher`], and
/// acknowledges them.
///
/// Any number of processes may run the same relay: they share its partitions. When a process
/// crashes, the other processes take over as soon as its leases have expired. An effect is
/// published at least once, each time with the same message id. Effects of one key are published in
/// order: an effect that the broker rejects delays the later effects of its key, but no other
/// effects of its batch.
///
/// If the broker has no place for a topic, or does not allow to publish to it, the effects of this
/// topic wait: see [`PublishError::TopicUnavailable`](crate::PublishError::TopicUnavailable) and
/// [`RelayStatus::unavailable`].
///
/// Each statement in the database is short and takes a connection of the pool. No connection is
/// held while effects are published. One more connection waits for new effects, so the pool needs
/// at least two connections.
///
/// ```no_run
/// # async fn run(
/// #     pool: deadpool_postgres::Pool, publisher: impl idem_runtime::Publisher,
/// # ) -> Result<(), idem_runtime::Error> {
/// use std::time::Duration;
///
/// use idem_runtime::Relay;
///
/// let shutdown = async {
///     let _ = tokio::signal::ctrl_c().await;
/// };
/// let summary = Relay::new(pool, publisher)
///     .name("default")
///     .lease(Duration::from_secs(30))
///     .max_attempts(10)
///     .run(shutdown)
///     .await?;
/// println!("{} effects published, {} parked", summary.published, summary.parked);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a relay does nothing until it runs"]
pub struct Relay<P> {
    pool: Pool,
    publisher: Arc<P>,
    settings: Settings,
    max_held_bytes: u64,
    status: watch::Sender<RelayStatus>,
}

impl<P: Publisher> Relay<P> {
    /// Creates a relay with the name `default` and the default settings.
    pub fn new(pool: Pool, publisher: P) -> Self {
        let relay = Self {
            pool,
            publisher: Arc::new(publisher),
            settings: Settings {
                name: defaults::NAME.into(),
                batch: 0,
                max_bytes: 0,
                in_flight: defaults::IN_FLIGHT,
                lease: defaults::LEASE,
                max_attempts: defaults::MAX_ATTEMPTS,
                backoff: Pauses::from_millis(100, 10_000),
                publish_timeout: Duration::from_secs(30),
                grace: Duration::from_secs(5),
                recount: RECOUNT,
            },
            max_held_bytes: defaults::MAX_HELD_BYTES,
            status: watch::Sender::default(),
        };
        relay.batch(defaults::BATCH).max_bytes(defaults::MAX_BYTES)
    }

    /// Sets the name of the relay in the database. The relay `default` always exists;
    /// `idem_create_relay` creates other relays.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.name = name.into();
        self
    }

    /// Sets the number of effects that are leased and acknowledged together, 1 to 10,000; 500 by
    /// default.
    pub fn batch(mut self, effects: u32) -> Self {
        self.settings.batch = i32::try_from(effects).unwrap_or(i32::MAX);
        self
    }

    /// Sets the number of bytes of payloads and headers in a batch, at most 1 GB; 16 MiB by
    /// default. The first effect is leased whatever its size. A process holds one batch in memory
    /// for each partition: see [`max_held_bytes`](Self::max_held_bytes).
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.settings.max_bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self
    }

    /// Sets the number of bytes in the batches of all partitions in this process; 64 MiB by
    /// default. Each partition has an equal share, so a partition with an unavailable broker does
    /// not reduce the share of the other partitions. The first effect of a batch is leased whatever
    /// its size.
    pub fn max_held_bytes(mut self, bytes: u64) -> Self {
        self.max_held_bytes = bytes;
        self
    }

    /// Sets the number of effects of a partition that are published concurrently; 256 by default.
    pub fn in_flight(mut self, effects: usize) -> Self {
        self.settings.in_flight = effects.max(1);
        self
    }

    /// Sets how long a batch is leased; 30 s by default. A process that needs more time extends the
    /// lease. After a crash, other processes wait for the end of the lease.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// Sets the number of attempts to publish an effect that the broker
    /// [rejects](crate::PublishError::Rejected) before the effect is parked; 10 by default. Each
    /// process counts its own attempts.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.settings.max_attempts = attempts;
        self
    }

    /// Sets the first and the longest pause before a rejected effect is retried; 100 ms and 10 s by
    /// default. The pause doubles from attempt to attempt. Jitter lengthens a pause by up to 100 %.
    pub fn back_off(mut self, base: Duration, cap: Duration) -> Self {
        self.settings.backoff = Pauses {
            first: base,
            longest: cap,
        };
        self
    }

    /// Sets how long a publisher may take for one effect before the broker counts as unavailable;
    /// 30 s by default.
    pub fn publish_timeout(mut self, timeout: Duration) -> Self {
        self.settings.publish_timeout = timeout;
        self
    }

    /// Sets how long the relay continues with its current batch after a shutdown is requested; 5 s
    /// by default. The rest of the batch is then released, and any process can lease it. The relay
    /// also waits no longer than this for a database that does not respond.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.settings.grace = grace;
        self
    }

    /// Sets the interval at which the relay reads its number of partitions; 10 s by default. While
    /// the processes of a relay run, an administrator can drop the relay and create it again with
    /// another number of partitions.
    pub fn recount(mut self, interval: Duration) -> Self {
        self.settings.recount = interval.max(Duration::from_millis(1));
        self
    }

    /// Returns a receiver of the relay's current status. It works before and during the run.
    pub fn status(&self) -> watch::Receiver<RelayStatus> {
        self.status.subscribe()
    }

    /// Publishes effects until `shutdown` completes. The relay then finishes its current batch
    /// within the [grace period](Self::grace), acknowledges it, and stops.
    ///
    /// Failures of the environment are retried and shown in the [status](Self::status): the
    /// database or the broker is unavailable, the relay does not exist, the role lacks its grant,
    /// the extension is not installed or has another version, transaction ids went backwards (see
    /// `idem_repair_relays`), or the broker has no place for a topic.
    ///
    /// Errors are returned when waiting cannot help: a setting is out of range, or sessions are not
    /// READ COMMITTED. If the publisher panics, the relay fails with [`Error::WorkerPanicked`]
    /// after the other partitions have stopped.
    ///
    /// Dropping the future stops the relay at once. The effects that it has leased are leased again
    /// after their lease has expired.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<RelaySummary, Error> {
        let relay = &self.settings.name;
        let reporter = Reporter::new(relay, self.status.clone());
        let serving = Serving {
            pool: &self.pool,
            reporter: &reporter,
            recount: self.settings.recount,
            grace: self.settings.grace,
        };
        let serve =
            |task| Partition::new(self.statements(&task), Arc::clone(&self.publisher), task);
        serving.run(shutdown, |task| serve(task).run()).await?;
        let summary = {
            let status = self.status.borrow();
            RelaySummary {
                published: status.published,
                parked: status.parked,
            }
        };
        info!(
            relay,
            summary.published, summary.parked, "the relay has stopped"
        );
        Ok(summary)
    }

    /// Returns the statements of one partition, with its share of the bytes that the process may
    /// hold.
    fn statements(&self, task: &PartitionTask) -> RelayStatements {
        let share = self.max_held_bytes / u64::try_from(task.partitions).unwrap_or(1).max(1);
        let share = i64::try_from(share).unwrap_or(i64::MAX).max(1);
        RelayStatements {
            pool: self.pool.clone(),
            settings: Settings {
                max_bytes: self.settings.max_bytes.min(share),
                ..self.settings.clone()
            },
            reporter: task.reporter.clone(),
        }
    }
}
