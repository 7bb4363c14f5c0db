//! The workers of a consumer: collect messages, process them, settle them.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use deadpool_postgres::Pool;
use futures_util::{
    future::{TryFutureExt as _, join_all},
    stream::{FuturesUnordered, StreamExt},
};
use idem_client::{Destination, ErrorKind};
use tokio::{
    sync::{Mutex, Notify, Semaphore},
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};
use tokio_postgres::error::SqlState;
use tokio_util::sync::CancellationToken;

use super::{
    attempt::attempt_route,
    breakers::{Attempted, Breakers, Cause},
    ended::SourceEnded,
    failures::{Failures, identity},
    intake::Intake,
    last_delivery::{KeptBy, keep_somewhere},
    queue::{Next, Permit, Queue, QueuedMessage},
    rejections::{KeptAs, keep},
    requeued::Requeued,
    routes::{Route, Routes, Table},
    settings::Settings,
    status::Status,
    summary::{Counters, DeliveryOutcome, Summary},
    verdict::Verdict,
    workers::Workers,
};
use crate::{
    Delivery, Error, Idem, Message, Processed, Receipt, Settlement, Source, connection::closed,
    error::causes, panics::unwinding, process::caused_by_environment, telemetry,
    transport::TransportError,
};

/// The longest time for each step of a shutdown after the grace period: see `drain`.
const STOP_STEP_LIMIT: Duration = Duration::from_secs(5);
/// The pause between two attempts to keep a message while another transaction holds the claim of
/// the message.
const CLAIM_ENDS: Duration = Duration::from_millis(100);
/// The longest time for which a step of a shutdown tries to keep messages. It is shorter than
/// [`STOP_STEP_LIMIT`], so that every message that is not kept is logged.
const KEEP_LIMIT: Duration = Duration::from_millis(4_500);
/// The longest time that a broker may take to confirm a settlement. The longest limit of a broker
/// client is shorter: 5 minutes for a message in librdkafka.
const SETTLEMENT: Duration = Duration::from_secs(600);

/// The reasons for the return of a message that was not handled.
const PAUSED: &str = "its destination is paused after a failure of the environment";
const NOT_DUE: &str = "it is not due yet, or another process holds it";
/// The limit for every wait. A longer wait counts as this time.
const LONGEST_WAIT: Duration = Duration::from_secs(10 * 366 * 86_400);

/// What a consumer is built from.
pub(super) struct Parts<S> {
    pub(super) pool: Pool,
    pub(super) source: S,
    pub(super) idem: Idem,
    pub(super) routes: Routes,
    pub(super) settings: Settings,
    pub(super) status: Status,
}

/// The state that all workers share.
pub(super) struct Runtime<S> {
    pool: Pool,
    idem: Idem,
    routes: Table,
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

/// Runs the workers until `shutdown` completes, the source ends or a worker panics, and then drains
/// them. Returns an error if the source ended or a worker panicked.
pub(super) async fn run<S: Source>(
    runtime: Arc<Runtime<S>>,
    shutdown: impl Future<Output = ()>,
) -> Result<Summary, Error> {
    let mut workers = Workers::new();
    for _ in 0..runtime.settings.concurrency {
        workers.spawn(Arc::clone(&runtime).work());
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
    match workers.into_error() {
        Some(panicked) => Err(panicked),
        None if is_requested => Ok(summary),
        None => {
            let error = runtime.intake.lock().await.take_last_error();
            Err(Error::SourceEnded(Box::new(SourceEnded { summary, error })))
        }
    }
}

impl<S: Source> Runtime<S> {
    pub(super) fn new(parts: Parts<S>) -> Result<Self, Error> {
        let settings = parts.settings;
        let capacity = settings
            .concurrency
            .saturating_mul(settings.batches.max)
            // The capacity is at least two, so that another message can succeed while one message
            // is retried in place.
            .clamp(2, Semaphore::MAX_PERMITS);
        let routes = parts.routes.check(&parts.idem, &parts.pool)?;
        let breakers = Breakers::new(&routes, parts.status);
        let inbox = parts.source.inbox().cloned();
        let destinations = routes
            .handled()
            .into_iter()
            .filter(|handled| inbox.as_ref() != Some(handled));
        let requeued = Requeued::new(&parts.pool, destinations, routes.unrouted()?);
        Ok(Self {
            pool: parts.pool,
            routes,
            idem: parts.idem,
            settings,
            is_ordered: settings
                .is_ordered
                .unwrap_or_else(|| parts.source.keeps_order_of_keys()),
            intake: Mutex::new(Intake::new(parts.source, requeued)),
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

    async fn work(self: Arc<Self>) {
        loop {
            let batch = self.collect().await;
            if batch.is_empty() {
                return;
            }
            self.process(batch).await;
        }
    }

    // Stopping

    /// Lets the workers finish their messages within the grace period. Then releases the rest. Five
    /// steps follow the grace period, each of at most [`STOP_STEP_LIMIT`].
    async fn drain(&self, workers: &mut Workers) {
        self.stop.cancel();
        let grace = self.settings.grace;
        if timeout(grace, workers.ended()).await.is_err() {
            tracing::warn!(
                ?grace,
                "the grace period ended: running handlers are rolled back, \
                 and their messages are released"
            );
            self.cut.cancel();
            if timeout(STOP_STEP_LIMIT, workers.ended()).await.is_err() {
                self.count_unsettled(self.held_count().saturating_sub(self.queue.len()));
                // A handler that blocks its thread can still commit. Until it ends, the later
                // messages of its sequence are not released.
                workers.abort().await;
            }
        }
        if timeout(STOP_STEP_LIMIT, closed()).await.is_err() {
            tracing::warn!("the database may still execute statements of dropped handlers");
        }
        // Release the waiting messages only now: another consumer must not handle a message while
        // an earlier message of its sequence is still being processed.
        let until = Instant::now() + KEEP_LIMIT;
        if timeout(STOP_STEP_LIMIT, self.release_waiting(until))
            .await
            .is_err()
        {
            tracing::warn!("the broker did not confirm the release of waiting messages in time");
        }
        let Ok(near_limit) = timeout(STOP_STEP_LIMIT, self.close()).await else {
            tracing::warn!("the source did not close in time");
            return;
        };
        let messages = near_limit.len();
        let until = Instant::now() + KEEP_LIMIT;
        let near_limit = near_limit.into_iter().map(Delivery::into_parts);
        if timeout(
            STOP_STEP_LIMIT,
            self.keep_last_deliveries(near_limit, until),
        )
        .await
        .is_err()
        {
            tracing::warn!(
                messages,
                within = ?STOP_STEP_LIMIT,
                "some messages that their broker may not redeliver are not kept"
            );
        }
    }

    // Collecting

    /// Waits for the intake lock, and then for messages. Returns an empty batch only when the
    /// consumer stops or the source has ended.
    async fn collect(&self) -> Vec<QueuedMessage> {
        let mut intake = self.intake.lock().await;
        let mut batch: Vec<QueuedMessage> = Vec::new();
        let mut until = None;
        loop {
            if self.stop.is_cancelled() {
                return batch;
            }
            if self.breakers.block_all() {
                self.wait_for_environment(std::mem::take(&mut batch)).await;
                until = None;
                continue;
            }
            if self.breakers.is_due() {
                tokio::select! {
                    biased;
                    () = self.stop.cancelled() => return batch,
                    () = self.breakers.look(&self.pool) => continue,
                }
            }
            if batch.len() >= self.settings.batches.max {
                return batch;
            }
            match self.queue.take_within(self.bytes_left(&batch)) {
                Next::Message(queued) => {
                    batch.push(queued);
                    until.get_or_insert_with(|| later(self.settings.batches.linger));
                    continue;
                }
                Next::TooLarge => return batch,
                // The batch may hold the bytes that the next message waits for, so process the
                // batch first.
                Next::Nothing if self.queue.has_ahead() && !batch.is_empty() => return batch,
                Next::Nothing if self.queue.admit_beside_delayed(self.held_count()) => continue,
                Next::Nothing => {}
            }
            if intake.has_ended() && (!batch.is_empty() || self.holds_nothing()) {
                return batch;
            }
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return batch,
                () = at(until) => return batch,
                () = at(self.queue.next_due()) => {}
                () = at(self.breakers.next_look()) => {}
                () = self.changed.notified() => {}
                () = self.queue.bytes_for_ahead(), if self.queue.has_ahead() => {}
                queued = self.fetch(&mut intake),
                    if !intake.has_ended() && !self.queue.has_ahead() => match queued {
                    Some(queued) => self.queue.push(queued),
                    None => self.source_has_ended(),
                },
            }
        }
    }

    /// Releases the messages that no worker has begun to process. Then waits until a message can be
    /// tried or the consumer stops.
    async fn wait_for_environment(&self, mut unbegun: Vec<QueuedMessage>) {
        unbegun.extend(std::iter::from_fn(|| self.queue.take_unbegun()));
        let mut given_back: FuturesUnordered<_> = unbegun
            .into_iter()
            .map(|queued| self.release_unkept(queued))
            .collect();
        // A broker that does not respond can delay a settlement for a long time. No other worker
        // fetches meanwhile, so this worker must notice the stop.
        tokio::select! {
            () = async { while given_back.next().await.is_some() {} } => {}
            () = async { self.stop.cancelled().await; sleep(STOP_STEP_LIMIT).await } => {
                self.count_unsettled(given_back.len());
            }
        }
        drop(given_back);
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = self.breakers.wait(&self.pool) => {}
        }
    }

    /// Fetches the next message. Cancel safe if the source is cancel safe.
    async fn fetch(&self, intake: &mut Intake<S>) -> Option<QueuedMessage> {
        let permit = Arc::clone(&self.room).acquire_owned().await.ok()?;
        let delivery = intake.next().await?;
        Some(QueuedMessage::new(delivery, self.is_ordered, permit))
    }

    /// Returns the number of messages that are held.
    fn held_count(&self) -> usize {
        self.capacity.saturating_sub(self.room.available_permits())
    }

    fn holds_nothing(&self) -> bool {
        self.held_count() == 0
    }

    /// Returns how many more bytes the batch may take. An empty batch takes a message of any size,
    /// so an oversized message becomes a batch of its own.
    fn bytes_left(&self, batch: &[QueuedMessage]) -> usize {
        match batch {
            [] => usize::MAX,
            batch => self
                .settings
                .max_batch_bytes()
                .saturating_sub(batch.iter().map(QueuedMessage::size).sum()),
        }
    }

    /// Records that the source has ended. The worker that fetches then waits until no message is
    /// held.
    fn source_has_ended(&self) {
        self.has_ended.swap(true, Ordering::AcqRel);
    }

    // Processing

    async fn process(&self, batch: Vec<QueuedMessage>) {
        for (route, group) in self.by_route(batch).await {
            if let Some(pause) = self.breakers.pause_of(route.number) {
                let given_back = group.into_iter().map(|queued| {
                    self.release_or_keep(queued, pause, DeliveryOutcome::GivenBack, PAUSED)
                });
                join_all(given_back).await;
                continue;
            }
            let messages: Vec<Message> =
                group.iter().map(|queued| queued.message.clone()).collect();
            let began = Instant::now();
            let results = tokio::select! {
                biased;
                () = self.cut.cancelled() => None,
                results = attempt_route(&self.idem, &self.pool, route, &messages) => Some(results),
            };
            match results {
                Some(results) => {
                    let ends = group.into_iter().zip(results);
                    join_all(
                        ends.map(|(queued, result)| {
                            self.settle_result(queued, route, began, result)
                        }),
                    )
                    .await;
                }
                None => {
                    join_all(
                        group
                            .into_iter()
                            .map(|queued| self.release_attempted(queued)),
                    )
                    .await;
                }
            }
        }
    }

    /// Groups the messages by route, each group in the order of delivery. Rejects the messages that
    /// match no route.
    async fn by_route(&self, batch: Vec<QueuedMessage>) -> Vec<(&Route, Vec<QueuedMessage>)> {
        let mut groups: Vec<(&Route, Vec<QueuedMessage>)> = Vec::new();
        for mut queued in batch {
            let found = unwinding(async { self.routes.find(&queued.message) }).await;
            match found {
                Ok(Some(route)) => {
                    queued.message = queued.message.with_destination(route.destination.clone());
                    match groups
                        .iter_mut()
                        .find(|(other, _)| other.number == route.number)
                    {
                        Some((_, group)) => group.push(queued),
                        None => groups.push((route, vec![queued])),
                    }
                }
                Ok(None) => {
                    let reason = "no route takes this message";
                    self.reject(queued, reason.into(), KeptAs::Hash).await;
                }
                Err(panic) => {
                    self.failed(queued, &Error::Handler(panic.into()), Duration::ZERO)
                        .await
                }
            }
        }
        groups
    }

    /// Settles a message according to the result of its attempt, or keeps it for another attempt.
    async fn settle_result(
        &self,
        queued: QueuedMessage,
        route: &Route,
        began: Instant,
        result: Result<Processed, Error>,
    ) {
        if let Ok(processed) = &result {
            let is_handled = matches!(
                processed,
                Processed::New { .. } | Processed::Unprotected { .. }
            );
            self.breakers.succeeded(route.number, began, is_handled);
        }
        let kept_as = match &result {
            Ok(Processed::Mismatch) => KeptAs::Hash,
            _ => KeptAs::Itself,
        };
        match Verdict::of(result) {
            Verdict::Over(Settlement::Reject { reason }, _) => {
                self.reject(queued, reason, kept_as).await
            }
            Verdict::Over(settlement, outcome) => {
                self.forget(&queued);
                self.settle(queued, settlement, outcome).await;
            }
            Verdict::Again { after } => {
                self.release_or_keep(queued, after, DeliveryOutcome::Retried, NOT_DUE)
                    .await
            }
            Verdict::Failed { error, after } => self.failed(queued, &error, after).await,
            Verdict::Away(error) => {
                let attempted = Attempted {
                    identity: identity(&queued.message),
                    message_id: queued.message.message_id(),
                    route: route.number,
                };
                match self.breakers.judge(attempted, &error) {
                    Cause::Message => self.failed(queued, &error, Duration::ZERO).await,
                    Cause::Environment { after } => {
                        // Wake the worker that fetches, because it must stop fetching at once.
                        self.changed.notify_one();
                        self.release_or_keep(
                            queued,
                            after,
                            DeliveryOutcome::GivenBack,
                            &causes(&error),
                        )
                        .await;
                    }
                }
            }
        }
    }

    /// Forgets the failures of a message that is finished.
    fn forget(&self, queued: &QueuedMessage) {
        self.failures.forget(&queued.message);
        self.breakers.forget(|| identity(&queued.message));
    }

    // Settling

    async fn failed(&self, mut queued: QueuedMessage, error: &Error, at_least: Duration) {
        if queued.receipt.is_in_charge() {
            return self.report_failure(queued, error).await;
        }
        let (failures, pause) = self.failures.count(&mut queued);
        match pause {
            Some(pause) => {
                let after = pause.max(at_least);
                tracing::warn!(
                    error = causes(error),
                    ?after,
                    attempt = failures,
                    destination = queued.message.given_destination().map(Destination::as_str),
                    message_id = queued.message.message_id(),
                    "a message failed and is retried"
                );
                self.redeliver(
                    queued,
                    Settlement::Retry { after },
                    after,
                    DeliveryOutcome::Retried,
                )
                .await;
            }
            None => {
                let reason = format!("failed too often: {}", causes(error));
                self.reject(queued, reason, KeptAs::Itself).await;
            }
        }
    }

    /// Reports a failure to a source that manages failures itself.
    async fn report_failure(&self, queued: QueuedMessage, error: &Error) {
        let QueuedMessage {
            message,
            receipt,
            permit,
            ..
        } = queued;
        let settled = in_time(async { receipt.failed(causes(error)).await }).await;
        let settlement = match settled {
            Ok(settlement) => settlement,
            Err(cause) => {
                self.not_confirmed(&message, &*cause);
                Settlement::RETRY
            }
        };
        tracing::warn!(
            error = causes(error),
            ?settlement,
            attempt = message.deliveries(),
            destination = message.given_destination().map(Destination::as_str),
            message_id = message.message_id(),
            "a message failed"
        );
        self.counters.count(match settlement {
            Settlement::Reject { .. } => DeliveryOutcome::Rejected,
            _ => DeliveryOutcome::Retried,
        });
        telemetry::settled(message.given_destination(), &settlement);
        self.finish(None, permit);
    }

    /// Releases a message that did not fail. If the broker may delete the message at this release,
    /// the message is rejected instead, so that it is kept.
    async fn release_or_keep(
        &self,
        queued: QueuedMessage,
        after: Duration,
        outcome: DeliveryOutcome,
        cause: &str,
    ) {
        // A message with a sequence waits in place. It is not returned to its broker, so the broker
        // cannot delete it.
        if queued.sequence.is_none() && queued.costs_delivery_near_limit() {
            let reason = format!("its broker may delete it at the next return: {cause}");
            self.reject(queued, reason, KeptAs::Itself).await;
        } else {
            self.release(queued, after, outcome).await;
        }
    }

    /// Releases a message while the database is unavailable or cannot keep it.
    async fn release_unkept(&self, queued: QueuedMessage) {
        self.release(
            queued,
            self.failures.first_pause(),
            DeliveryOutcome::GivenBack,
        )
        .await;
    }

    async fn release(&self, queued: QueuedMessage, after: Duration, outcome: DeliveryOutcome) {
        self.redeliver(queued, Settlement::Release { after }, after, outcome)
            .await;
    }

    async fn reject(&self, queued: QueuedMessage, reason: String, kept_as: KeptAs) {
        let destination = queued.message.given_destination();
        if queued.receipt.keeps_rejected() {
            tracing::warn!(
                reason,
                destination = destination.map(Destination::as_str),
                message_id = queued.message.message_id(),
                topic = queued.message.topic(),
                "a message is rejected"
            );
            self.forget(&queued);
            return self
                .settle(
                    queued,
                    Settlement::Reject { reason },
                    DeliveryOutcome::Rejected,
                )
                .await;
        }
        match self.keep_letter(&queued.message, kept_as, &reason).await {
            Ok(_) => {
                self.forget(&queued);
                telemetry::settled(
                    queued.message.given_destination(),
                    &Settlement::Reject { reason },
                );
                self.counters.count(DeliveryOutcome::Rejected);
                self.settle_at_broker(queued, Settlement::Acknowledge).await;
            }
            // The database cannot keep the message now, so the message is released to its broker.
            Err(error) if letter_failed_by_environment(&error) => {
                self.breakers.trip_all(&error);
                self.changed.notify_one();
                self.release_unkept(queued).await;
            }
            Err(error) => {
                let after = self.failures.pause_unkept(&queued.message);
                tracing::warn!(
                    error = causes(&error),
                    ?after,
                    message_id = queued.message.message_id(),
                    "a rejected message cannot be stored as a dead letter yet"
                );
                self.release(queued, after, DeliveryOutcome::GivenBack)
                    .await;
            }
        }
    }

    /// Stores a message in `idem.dead_letter`. Returns false when it is a dead letter already or
    /// was processed.
    async fn keep_letter(
        &self,
        message: &Message,
        kept_as: KeptAs,
        reason: &str,
    ) -> Result<bool, Error> {
        let (destination, kept_as) = match message.given_destination() {
            Some(destination) => (destination.clone(), kept_as),
            // Ids are unique only within a destination, so a message without a destination is kept
            // under its hash.
            None => (self.routes.unrouted()?, KeptAs::Hash),
        };
        keep(
            &self.idem,
            &self.pool,
            &destination,
            message,
            kept_as,
            reason,
        )
        .await
    }

    /// Returns a message to its broker for redelivery. If the return would change the order of its
    /// key or might delete the message, the message is retried in place.
    async fn redeliver(
        &self,
        queued: QueuedMessage,
        settlement: Settlement,
        after: Duration,
        outcome: DeliveryOutcome,
    ) {
        if queued.sequence.is_none() && !queued.may_end_with_release() {
            return self.settle(queued, settlement, outcome).await;
        }
        if outcome == DeliveryOutcome::Retried {
            self.counters.count(outcome);
        }
        self.queue.delay(queued, later(after));
        self.changed.notify_one();
    }

    async fn settle(
        &self,
        queued: QueuedMessage,
        settlement: Settlement,
        outcome: DeliveryOutcome,
    ) {
        self.counters.count(outcome);
        telemetry::settled(queued.message.given_destination(), &settlement);
        self.settle_at_broker(queued, settlement).await;
    }

    /// Settles the message at its broker and releases its permit.
    async fn settle_at_broker(&self, queued: QueuedMessage, settlement: Settlement) {
        let QueuedMessage {
            message,
            receipt,
            sequence,
            permit,
            ..
        } = queued;
        if let Err(error) = in_time(async { receipt.settle(settlement).await }).await {
            self.not_confirmed(&message, &*error);
        }
        self.finish(sequence, permit);
    }

    fn not_confirmed(&self, message: &Message, error: &(dyn std::error::Error + 'static)) {
        tracing::warn!(
            error,
            message_id = message.message_id(),
            "the settlement is not confirmed: the message may be redelivered"
        );
        self.counters.failed_settlements(1);
    }

    /// Releases the permit and the sequence of a settled message.
    fn finish(&self, sequence: Option<String>, permit: Permit) {
        if let Some(sequence) = &sequence {
            self.queue.release(sequence);
        }
        drop(permit);
        // Wake the worker that fetches only when it waits for this, because a wake-up interrupts
        // the fetch. The read-modify-write either finds that the source has ended, or precedes that
        // moment, so that the worker sees the released permit. A plain load could be too early, and
        // the worker would then wait without end.
        let is_awaited = sequence.is_some() || self.queue.has_ahead();
        if is_awaited || self.has_ended.fetch_or(false, Ordering::AcqRel) {
            self.changed.notify_one();
        }
    }

    async fn release_waiting(&self, until: Instant) {
        let (last_deliveries, rest): (Vec<_>, Vec<_>) = self
            .queue
            .drain()
            .into_iter()
            .partition(QueuedMessage::may_end_with_release);
        let given_back = async {
            // Release them one after the other: the broker may redeliver them in this order.
            let mut rest = rest.into_iter();
            while let Some(queued) = rest.next() {
                if timeout_at(until, self.release_at_stop(queued))
                    .await
                    .is_err()
                {
                    return self.count_unsettled(1 + rest.len());
                }
            }
        };
        let last_deliveries = last_deliveries
            .into_iter()
            .map(|queued| (queued.message, queued.receipt));
        tokio::join!(
            given_back,
            self.keep_last_deliveries(last_deliveries, until)
        );
    }

    /// Releases a message that this worker was processing when the grace period ended.
    async fn release_attempted(&self, queued: QueuedMessage) {
        if queued.may_end_with_release() {
            // The database can keep the message only after the rollback of its attempt has ended.
            self.queue.delay(queued, Instant::now());
        } else {
            self.release_at_stop(queued).await;
        }
    }

    async fn release_at_stop(&self, queued: QueuedMessage) {
        let settlement = queued.given_back();
        self.settle(queued, settlement, DeliveryOutcome::GivenBack)
            .await;
    }

    /// Closes the source, which returns its prefetched messages. This is called after all workers
    /// have ended. Returns the messages near their delivery limit, which the source did not return.
    async fn close(&self) -> Vec<Delivery> {
        let closed = self.intake.lock().await.close().await;
        self.counters.returned(closed.returned);
        closed.near_limit
    }

    /// Keeps several messages that their broker may not redeliver, all concurrently. While another
    /// transaction holds the claim of a message, storing the message is retried until `until`.
    async fn keep_last_deliveries(
        &self,
        deliveries: impl Iterator<Item = (Message, Box<dyn Receipt>)>,
        until: Instant,
    ) {
        join_all(
            deliveries.map(|(message, receipt)| self.keep_last_delivery(message, receipt, until)),
        )
        .await;
    }

    /// Keeps a message that its broker may not redeliver while the consumer stops. The message is
    /// kept where its broker keeps rejected messages, or in the database. When this fails, the
    /// receipt is dropped, and the source may hand over the message once more at its close.
    async fn keep_last_delivery(
        &self,
        message: Message,
        receipt: Box<dyn Receipt>,
        until: Instant,
    ) {
        const REASON: &str = "the consumer stopped before it handled this message, \
             and its broker may not redeliver it";
        let (message, kept_as) = self.routed(message).await;
        let kept = if receipt.keeps_rejected() {
            let broker =
                settled_by(until, receipt, Settlement::reject(REASON)).inspect_err(|error| {
                    tracing::warn!(
                        error = causes(&**error),
                        message_id = message.message_id(),
                        "the broker did not confirm that it keeps a rejected message"
                    );
                });
            let database = self.keep_last_letter(&message, kept_as, REASON, until);
            let keeper = keep_somewhere(broker, database, KEEP_LIMIT / 2).await;
            if !matches!(keeper, Ok(KeptBy::Broker)) {
                self.counters.failed_settlements(1);
            }
            if matches!(keeper, Ok(KeptBy::Database { .. })) {
                tracing::warn!(
                    message_id = message.message_id(),
                    "a message is stored as a dead letter, \
                     because its broker did not confirm that it keeps the message"
                );
            }
            keeper.map(|keeper| match keeper {
                KeptBy::Broker => true,
                KeptBy::Database { is_new } => is_new,
            })
        } else {
            let kept = self
                .keep_last_letter(&message, kept_as, REASON, until)
                .await;
            match &kept {
                Ok(_) => {
                    if let Err(error) = settled_by(until, receipt, Settlement::Acknowledge).await {
                        self.not_confirmed(&message, &*error);
                    }
                }
                Err(_) => self.counters.failed_settlements(1),
            }
            kept
        };
        match kept {
            Ok(true) => {
                telemetry::settled(message.given_destination(), &Settlement::reject(REASON));
                self.counters.count(DeliveryOutcome::Rejected);
            }
            // The message was processed, or its source has handed it over a second time.
            Ok(false) => self.counters.count(DeliveryOutcome::Duplicate),
            Err(error) => tracing::error!(
                error = causes(&error),
                destination = message.given_destination().map(Destination::as_str),
                message_id = message.message_id(),
                "a message that its broker may not redeliver is not kept"
            ),
        }
    }

    /// Stores a message as a dead letter. Retries while the database is unavailable and while
    /// another transaction holds the claim of the message. Such a transaction can be an aborted
    /// transaction that the server ends late, behind a connection pooler.
    async fn keep_last_letter(
        &self,
        message: &Message,
        kept_as: KeptAs,
        reason: &str,
        until: Instant,
    ) -> Result<bool, Error> {
        let mut last = None;
        while Instant::now() < until {
            match timeout_at(until, self.keep_letter(message, kept_as, reason)).await {
                Ok(Err(error)) if may_soon_be_kept(&error) => last = Some(error),
                Ok(kept) => return kept,
                Err(_) => break,
            }
            sleep_until(until.min(Instant::now() + CLAIM_ENDS)).await;
        }
        Err(last.unwrap_or_else(|| {
            Error::Pool("the database did not respond before the consumer ended".into())
        }))
    }

    /// Returns the message with the destination of its route, and the id under which it is kept.
    async fn routed(&self, message: Message) -> (Message, KeptAs) {
        let found = unwinding(async { self.routes.find(&message) }).await;
        let Ok(Some(route)) = found else {
            return (message, KeptAs::Hash);
        };
        (
            message.with_destination(route.destination.clone()),
            KeptAs::Itself,
        )
    }

    /// Counts and logs settlements that the shutdown abandons.
    fn count_unsettled(&self, unsettled: usize) {
        tracing::warn!(
            unsettled,
            "the shutdown reached its time limit before these messages were settled: \
             they may be redelivered"
        );
        self.counters.failed_settlements(unsettled as u64);
    }
}

/// Returns whether the environment is the reason that a dead letter could not be stored. The limit
/// on the number of dead letters (`configuration_limit_exceeded`) does not count, because messages
/// that are not rejected can still be processed.
fn letter_failed_by_environment(error: &Error) -> bool {
    caused_by_environment(error)
        && error.sqlstate() != Some(&SqlState::CONFIGURATION_LIMIT_EXCEEDED)
}

/// Returns whether a dead letter that was not stored may still be stored before the consumer stops:
/// the database may become available, or the other transaction may release the claim.
fn may_soon_be_kept(error: &Error) -> bool {
    error.kind() == ErrorKind::Conflict || letter_failed_by_environment(error)
}

/// Waits for a receipt. Returns an error if the receipt panics or the broker does not respond in
/// time. The message may be redelivered after such an error.
async fn in_time<T>(
    settled: impl Future<Output = Result<T, TransportError>>,
) -> Result<T, TransportError> {
    match timeout(SETTLEMENT, unwinding(settled)).await {
        Ok(settled) => settled.unwrap_or_else(|panic| Err(panic.into())),
        Err(_) => {
            Err(format!("the broker did not confirm the settlement within {SETTLEMENT:?}").into())
        }
    }
}

/// Settles a delivery during a shutdown, until `until` at the latest.
async fn settled_by(
    until: Instant,
    receipt: Box<dyn Receipt>,
    settlement: Settlement,
) -> Result<(), TransportError> {
    let settled = in_time(async { receipt.settle(settlement).await });
    timeout_at(until, settled).await.unwrap_or_else(|_| {
        Err("the broker did not confirm the settlement before the consumer ended".into())
    })
}

/// Returns the instant after this time, at most [`LONGEST_WAIT`] from now. [`Duration::MAX`] means
/// "never", but a clock cannot add it.
fn later(after: Duration) -> Instant {
    Instant::now() + after.min(LONGEST_WAIT)
}

/// Sleeps until this instant, or for ever when there is none.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
