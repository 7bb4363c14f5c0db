//! The run of a consumer: its workers collect messages, process them and settle them.
//!
//! The number of messages that a consumer holds is limited to its concurrency times its batch size,
//! or to two if that is larger. One worker fetches at a time, and only when it is free. A message
//! that is held is being processed, or waits for an earlier message of its key, for free bytes, or
//! for its next attempt. A failed message is redelivered after a pause that grows, and rejected
//! after a limit. With order by key it is retried in place, and the later messages of its key wait:
//! if it were returned to the broker, they would overtake it.
//!
//! When the database is not available, nothing is fetched, and messages that no worker has begun
//! are released; with order by key they wait here (see `breakers`). The consumer also reads the
//! requeued dead letters of its destinations once a second. The runtime limits no handler in time:
//! a lease is renewed for as long as the handler runs.
//!
//! The way of a message, by files:
//!
//! 1. `collect` takes it from the source (`intake`) and puts it into the `queue`, which waits for
//!    its bytes (`budget`).
//! 2. `process` finds its route (`routes`, `selector`) and attempts it (`attempt`): from here the
//!    way leads through `process/pipeline.rs` of the crate.
//! 3. `settle` settles it at its broker, as the result of the attempt requires (`verdict`).
//!
//! The side ways: `failures` remembers what went wrong with a message, `breakers` pause after a
//! failure of the environment, `rejections` stores dead letters, and `stop` ends the run.

mod collect;
mod process;
mod settle;
mod stop;

use std::{
    future::Future,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use deadpool_postgres::Pool;
use tokio::{
    sync::{Mutex, Notify, Semaphore},
    task::JoinSet,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    breakers::Breakers,
    failures::Failures,
    intake::Intake,
    queue::Queue,
    routes::Routes,
    settings::Settings,
    status::Status,
    summary::{Counters, SourceEnded, Summary},
};
use crate::{Error, Idem, Source, panics};

/// The longest time for each step of a shutdown after the grace period: see `drain`.
const STOP_STEP_LIMIT: Duration = Duration::from_secs(5);
/// The limit for every wait. A longer wait counts as this time.
const LONGEST_WAIT: Duration = Duration::from_secs(10 * 366 * 86_400);

/// Returns the instant after this time, at most [`LONGEST_WAIT`] from now. [`Duration::MAX`] means
/// "never", but a clock cannot add it.
fn later(after: Duration) -> Instant {
    Instant::now() + after.min(LONGEST_WAIT)
}

/// The state that all workers share.
pub(super) struct Runtime<S> {
    pool: Pool,
    idem: Idem,
    routes: Routes,
    settings: Settings,
    is_ordered: bool,
    /// The worker that holds this lock fetches messages.
    intake: Mutex<Intake<S>>,
    /// One permit for each message that may be held.
    room: Arc<Semaphore>,
    capacity: usize,
    queue: Queue,
    /// Wakes the worker that fetches, because the queue may have a message for it.
    changed: Notify,
    has_ended: AtomicBool,
    breakers: Breakers,
    failures: Failures,
    counters: Counters,
    /// Cancelled when the consumer stops: nothing more is fetched.
    stop: CancellationToken,
    /// Cancelled after the grace period: running handlers are dropped.
    cut: CancellationToken,
}

impl<S: Source> Runtime<S> {
    pub(super) fn new(
        pool: Pool,
        source: S,
        idem: Idem,
        settings: Settings,
        routes: Routes,
        status: Status,
    ) -> Result<Self, Error> {
        let capacity = settings
            .concurrency
            .saturating_mul(settings.batches.max)
            // The capacity is at least two. While one message is retried in place, the success of
            // another message shows that the environment is available.
            .clamp(2, Semaphore::MAX_PERMITS);
        let routes = routes.check(&idem, &pool)?;
        let breakers = Breakers::new(&routes, status);
        let inbox = source.inbox().cloned();
        let destinations = routes
            .handled()
            .into_iter()
            .filter(|handled| inbox.as_ref() != Some(handled));
        let is_ordered = settings.is_ordered;
        let is_ordered = is_ordered.unwrap_or_else(|| source.keeps_order_of_keys());
        let intake = Intake::new(source, &pool, destinations, routes.unrouted()?);
        Ok(Self {
            pool,
            routes,
            idem,
            settings,
            is_ordered,
            intake: Mutex::new(intake),
            room: Arc::new(Semaphore::new(capacity)),
            capacity,
            queue: Queue::new(settings.max_bytes),
            changed: Notify::new(),
            has_ended: AtomicBool::new(false),
            breakers,
            failures: Failures::new(&settings),
            counters: Counters::default(),
            stop: CancellationToken::new(),
            cut: CancellationToken::new(),
        })
    }

    /// Returns the number of messages that are held.
    fn held_count(&self) -> usize {
        self.capacity.saturating_sub(self.room.available_permits())
    }

    async fn work(self: Arc<Self>) {
        loop {
            let batch = self.collect().await;
            if batch.is_empty() {
                return;
            }
            self.process(batch).await;
        }
    }
}

/// Runs the workers until `shutdown` completes, the source ends or a worker panics, and then drains
/// them. Returns an error if the source ended or a worker panicked.
pub(super) async fn run<S: Source>(
    runtime: Arc<Runtime<S>>,
    shutdown: impl Future<Output = ()>,
) -> Result<Summary, Error> {
    let mut workers = Workers::default();
    for _ in 0..runtime.settings.concurrency {
        workers.tasks.spawn(Arc::clone(&runtime).work());
    }
    let is_requested = tokio::select! {
        biased;
        () = shutdown => true,
        () = workers.panicked_or_ended() => false,
    };
    tracing::info!(
        is_requested,
        "the consumer is stopping: no more messages are fetched"
    );
    runtime.drain(&mut workers).await;
    let summary = runtime.counters.summary();
    tracing::info!(?summary, "the consumer has stopped");
    match workers.panicked {
        Some(panicked) => Err(panicked),
        None if is_requested => Ok(summary),
        None => {
            let error = runtime.intake.lock().await.source.last_error.take();
            Err(Error::SourceEnded(Box::new(SourceEnded { summary, error })))
        }
    }
}

/// The tasks that process messages, and the first panic that ended one of them.
#[derive(Default)]
struct Workers {
    tasks: JoinSet<()>,
    panicked: Option<Error>,
}

impl Workers {
    /// Waits until a worker has panicked or all workers have ended. Cancel safe.
    ///
    /// A worker that panicked may have left an ordering key busy, and later messages of this key
    /// would wait without end. So the consumer must then stop the other workers too.
    async fn panicked_or_ended(&mut self) {
        while self.panicked.is_none() && self.join_next().await {}
    }

    /// Waits until all workers have ended. Cancel safe.
    async fn ended(&mut self) {
        while self.join_next().await {}
    }

    /// Waits for one worker to end. Returns false when no worker is left.
    async fn join_next(&mut self) -> bool {
        let Some(ended) = self.tasks.join_next().await else {
            return false;
        };
        if let Some(error) = ended.err().and_then(panics::of_task) {
            tracing::error!(%error, "a panic of a worker stops the consumer");
            self.panicked.get_or_insert(error);
        }
        true
    }

    /// Aborts the workers that are still running.
    async fn abort(&mut self) {
        self.tasks.shutdown().await;
    }
}
