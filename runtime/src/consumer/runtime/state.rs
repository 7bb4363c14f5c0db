//! The state that all workers of a consumer share.

use std::sync::{Arc, atomic::AtomicBool};

use deadpool_postgres::Pool;
use tokio::sync::{Mutex, Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::{
    Error, Idem, Source,
    consumer::{
        breakers::Breakers, failures::Failures, intake::Intake, queue::Queue, routes::Routes,
        settings::Settings, status::Status, summary::Counters,
    },
};

/// The state that all workers share.
pub(in crate::consumer) struct Runtime<S> {
    pub(super) pool: Pool,
    pub(super) idem: Idem,
    pub(super) routes: Routes,
    pub(super) settings: Settings,
    pub(super) is_ordered: bool,
    /// The worker that holds this lock fetches messages.
    pub(super) intake: Mutex<Intake<S>>,
    /// One permit for each message that may be held.
    pub(super) room: Arc<Semaphore>,
    pub(super) capacity: usize,
    pub(super) queue: Queue,
    /// Wakes the worker that fetches, because the queue may have a message for it.
    pub(super) changed: Notify,
    pub(super) has_ended: AtomicBool,
    pub(super) breakers: Breakers,
    pub(super) failures: Failures,
    pub(super) counters: Counters,
    /// Cancelled when the consumer stops: nothing more is fetched.
    pub(super) stop: CancellationToken,
    /// Cancelled after the grace period: running handlers are dropped.
    pub(super) cut: CancellationToken,
}

impl<S: Source> Runtime<S> {
    pub(in crate::consumer) fn new(
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
    pub(super) fn held_count(&self) -> usize {
        self.capacity.saturating_sub(self.room.available_permits())
    }
}
