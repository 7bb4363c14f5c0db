//! The relay as its user sees it: settings, start, end.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use deadpool_postgres::Pool;
use tokio::{select, sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::{
    Publisher, RelayStatus, RelaySummary,
    bell::Bell,
    notes::Notes,
    partition::Partition,
    recreated::{Counted, Ended, partitions},
    status::Status,
    steps::{Steps, worse},
};
use crate::{Error, describe_metrics, panics};

/// Publishes the effects of a database: leases batches, gives them to a [`Publisher`],
/// acknowledges.
///
/// Any number of processes may run the same relay: they share its partitions, and when one dies the
/// others take over as soon as its leases have run out. An effect is published at least once, under
/// the same message id each time, and effects of one key in order: an effect that the broker does
/// not take holds up those of its key, and no others in its batch.
///
/// A broker that has no place for a topic, or refuses it, is waited for: see
/// [`PublishError::TopicUnavailable`](crate::PublishError::TopicUnavailable) and
/// [`RelayStatus::unavailable`].
///
/// Each step in the database is one short statement on a connection of the pool, and none is held
/// while the broker is talked to. Besides, one connection waits for new effects: a pool of at least
/// two.
///
/// ```no_run
/// # async fn run(pool: deadpool_postgres::Pool, publisher: impl idem_client::Publisher) -> Result<(), idem_client::Error> {
/// use std::time::Duration;
///
/// use idem_client::Relay;
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
    status: Status,
}

/// The pauses while the database or the broker is away: the first and the longest.
pub(super) const AWAY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How often the number of partitions is read unless a setting says otherwise.
pub(super) const RECOUNT: Duration = Duration::from_secs(10);

/// What a batch has at most unless a setting says otherwise.
pub(super) const MAX_BYTES: i64 = 16 * 1024 * 1024;

/// The settings of a relay that is given none, for programs that have the same settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayDefaults {
    /// See [`Relay::batch`].
    pub batch: u32,
    /// See [`Relay::max_bytes`].
    pub max_bytes: u64,
    /// See [`Relay::max_held_bytes`].
    pub max_held_bytes: u64,
    /// See [`Relay::in_flight`].
    pub in_flight: usize,
    /// See [`Relay::lease`].
    pub lease: Duration,
    /// See [`Relay::max_attempts`].
    pub max_attempts: u32,
}

impl Default for RelayDefaults {
    fn default() -> Self {
        Self {
            batch: 500,
            max_bytes: MAX_BYTES.unsigned_abs(),
            max_held_bytes: 64 * 1024 * 1024,
            in_flight: 256,
            lease: Duration::from_secs(30),
            max_attempts: 10,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) name: String,
    pub(super) batch: i32,
    pub(super) max_bytes: i64,
    pub(super) in_flight: usize,
    pub(super) lease: Duration,
    pub(super) max_attempts: u32,
    /// The first pause, and the longest.
    pub(super) back_off: (Duration, Duration),
    pub(super) publish_timeout: Duration,
    pub(super) grace: Duration,
    pub(super) recount: Duration,
}

impl<P: Publisher> Relay<P> {
    /// A relay named `default`, with the defaults of its settings.
    pub fn new(pool: Pool, publisher: P) -> Self {
        let defaults = RelayDefaults::default();
        let relay = Self {
            pool,
            publisher: Arc::new(publisher),
            settings: Settings {
                name: "default".into(),
                batch: 0,
                max_bytes: 0,
                in_flight: defaults.in_flight,
                lease: defaults.lease,
                max_attempts: defaults.max_attempts,
                back_off: (Duration::from_millis(100), Duration::from_secs(10)),
                publish_timeout: Duration::from_secs(30),
                grace: Duration::from_secs(5),
                recount: RECOUNT,
            },
            max_held_bytes: defaults.max_held_bytes,
            status: Status::new(),
        };
        // The database has other types.
        relay.batch(defaults.batch).max_bytes(defaults.max_bytes)
    }

    /// Which relay of the database this is: `default` is there from the start, `idem_create_relay`
    /// makes others.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.name = name.into();
        self
    }

    /// How many effects are leased together, 1 to 10,000; 500 unless given. They are acknowledged
    /// together, too.
    pub fn batch(mut self, effects: u32) -> Self {
        self.settings.batch = i32::try_from(effects).unwrap_or(i32::MAX);
        self
    }

    /// How many bytes the payloads and headers of a batch have together, at most 1 GB; 16 MB unless
    /// given. One effect is leased whatever its size. A process holds one batch in memory for each
    /// partition, see [`max_held_bytes`](Self::max_held_bytes).
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.settings.max_bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self
    }

    /// How many bytes the batches of all partitions have together in this process; 64 MiB unless
    /// given. Each partition has an equal share, so that a partition whose broker is away takes
    /// nothing from the others. One effect is leased whatever its size.
    pub fn max_held_bytes(mut self, bytes: u64) -> Self {
        self.max_held_bytes = bytes;
        self
    }

    /// How many effects of a partition are under way to the broker at once; 256 unless given.
    pub fn in_flight(mut self, effects: usize) -> Self {
        self.settings.in_flight = effects.max(1);
        self
    }

    /// How long a batch is this process's; 30 s unless given. Who takes longer extends it, who dies
    /// lets others wait for so long.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// How often an effect is given to a broker that [does not take
    /// it](crate::PublishError::Rejected) before it is parked; 10 unless given. Each process counts
    /// for itself.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.settings.max_attempts = attempts;
        self
    }

    /// The pause before such an effect is tried again: the first, doubled from attempt to attempt
    /// up to `cap`, each with up to as much again of jitter. 100 ms and 10 s unless given.
    pub fn back_off(mut self, base: Duration, cap: Duration) -> Self {
        self.settings.back_off = (base, cap);
        self
    }

    /// How long a publisher may take over one effect before the broker counts as away; 30 s unless
    /// given.
    pub fn publish_timeout(mut self, timeout: Duration) -> Self {
        self.settings.publish_timeout = timeout;
        self
    }

    /// How long a relay that is shut down goes on with the batch that it has; 5 s unless given.
    /// What is left then is given back, and comes again to whoever asks. A database that does not
    /// answer is waited for no longer either.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.settings.grace = grace;
        self
    }

    /// How often the relay reads how many partitions it has; 10 s unless given. An administrator
    /// can drop a relay and create it again with another number while its processes run.
    pub fn recount(mut self, interval: Duration) -> Self {
        self.settings.recount = interval.max(Duration::from_millis(1));
        self
    }

    /// How it fares, from now on and while it runs.
    pub fn status(&self) -> watch::Receiver<RelayStatus> {
        self.status.subscribe()
    }

    /// Publishes until `shutdown` ends; then finishes what it has, acknowledges, and leaves.
    ///
    /// Failures of the environment are retried, and visible in the [status](Self::status): the
    /// database or the broker is away, the relay does not exist, the role lacks its grant, the
    /// extension is not installed or has another version, transaction ids went backwards (see
    /// `idem_repair_relays`), or the broker has no place for a topic. The error is one that waiting
    /// does not mend: a setting is out of its range, or sessions are not READ COMMITTED. A panic of
    /// the publisher ends the relay with [`Error::WorkerPanicked`], after the other partitions have
    /// stopped.
    ///
    /// Dropping the future stops it at once: what was leased comes again after its lease.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<RelaySummary, Error> {
        describe_metrics();
        let mut shutdown = pin!(shutdown);
        let notes = Notes::new(&self.settings.name, self.status.clone());
        let relay = &self.settings.name;
        loop {
            let partitions = select! {
                partitions = partitions(&self.pool, relay, &notes) => partitions?,
                () = &mut shutdown => break,
            };
            info!(relay, partitions, "the relay works");
            match self.serve(partitions, &notes, shutdown.as_mut()).await? {
                Ended::Recreated => notes.partitions_are_gone(),
                Ended::Requested => break,
            }
        }
        let summary = self.status.summary();
        info!(
            relay,
            summary.published, summary.parked, "the relay has ended"
        );
        Ok(summary)
    }

    /// With the share of each partition in the bytes that the process may hold.
    fn settings_for(&self, partitions: i32) -> Settings {
        let share = self.max_held_bytes / u64::try_from(partitions).unwrap_or(1).max(1);
        let share = i64::try_from(share).unwrap_or(i64::MAX).max(1);
        let settings = self.settings.clone();
        Settings {
            max_bytes: settings.max_bytes.min(share),
            ..settings
        }
    }

    /// Works on all partitions until `shutdown` completes or the relay has other partitions.
    async fn serve(
        &self,
        partitions: i32,
        notes: &Notes,
        mut shutdown: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<Ended, Error> {
        let (bell, stop, settings) = (
            Arc::new(Bell::new()),
            CancellationToken::new(),
            Arc::new(self.settings_for(partitions)),
        );
        let mut tasks = JoinSet::new();
        for partition in 0..partitions {
            let steps = Steps {
                pool: self.pool.clone(),
                settings: Arc::clone(&settings),
                notes: notes.of_partition(partition),
                partition,
            };
            let partition = Partition::new(
                steps,
                Arc::clone(&self.publisher),
                Arc::clone(&bell),
                stop.clone(),
            );
            tasks.spawn(partition.run());
        }
        let (pool, relay) = (&self.pool, &self.settings.name);
        let counted = Counted {
            pool,
            relay,
            partitions,
        };
        let mut ring = pin!(bell.ring(pool));
        let mut changes = pin!(counted.changes(self.settings.recount));
        let (mut failed, mut is_requested) = (None, false);
        loop {
            select! {
                ended = tasks.join_next() => {
                    let error = match ended {
                        None => break,
                        Some(Ok(ended)) => ended.err(),
                        // The publisher panicked.
                        Some(Err(ended)) => panics::of_task(ended),
                    };
                    if let Some(error) = error {
                        failed = worse(failed, error);
                        stop.cancel();
                    }
                }
                () = &mut shutdown, if !stop.is_cancelled() => {
                    is_requested = true;
                    stop.cancel();
                }
                () = &mut ring, if !stop.is_cancelled() => {}
                () = &mut changes, if !stop.is_cancelled() => stop.cancel(),
            }
        }
        counted.ended(failed, is_requested).await
    }
}
