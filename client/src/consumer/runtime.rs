//! The workers: collect, process, settle.

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
use tokio::{
    sync::{Mutex, Notify, Semaphore},
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};
use tokio_postgres::error::SqlState;
use tokio_util::sync::CancellationToken;

use super::{
    attempt::attempt,
    breakers::{Attempted, Breakers, Culprit},
    builder::{Consumer, Settings},
    ended::SourceEnded,
    failures::{Failures, identity},
    intake::Intake,
    last_delivery::{Keeper, keep_somewhere},
    queue::{Held, Next, Permit, Queue},
    rejections::{KeptAs, keep},
    requeued::Requeued,
    routes::{Route, Table},
    summary::{Counters, Outcome, Summary},
    verdict::Verdict,
    workers::Workers,
};
use crate::{
    Delivery, Destination, Error, ErrorKind, Idem, Message, Processed, Receipt, Settlement, Source,
    TransportError, connection::closed, error::causes, panics::unwinding,
    process::is_environmental, telemetry,
};

/// How long each step of a shutdown after the grace may take: see `drain`.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Between two looks whether a claim has ended that keeps a message from being kept.
const CLAIM_ENDS: Duration = Duration::from_millis(100);
/// How long a step tries to keep messages: shorter than the step, so that each message that is not
/// kept is named.
const LAST_LETTER: Duration = Duration::from_millis(4_500);
/// How long a broker may take to confirm a settlement. The longest limit of the clients of brokers,
/// librdkafka's 5 minutes for a message, ends before.
const SETTLEMENT: Duration = Duration::from_secs(600);

/// Why a message is returned that was not handled.
const PAUSED: &str = "its destination is paused because of its environment";
const IN_PROGRESS: &str = "another transaction handles it";
/// Nothing is waited for longer.
const LONGEST_WAIT: Duration = Duration::from_secs(10 * 366 * 86_400);

/// What the workers share.
pub(super) struct Runtime<S> {
    pool: Pool,
    idem: Idem,
    routes: Table,
    settings: Settings,
    is_ordered: bool,
    /// The turn to fetch.
    intake: Mutex<Intake<S>>,
    /// One permit for each message that may be held.
    room: Arc<Semaphore>,
    capacity: usize,
    queue: Queue,
    /// Wakes whoever has the turn: there may be something in the queue for it.
    changed: Notify,
    has_ended: AtomicBool,
    breakers: Breakers,
    failures: Failures,
    counters: Counters,
    /// Nothing more is fetched.
    stop: CancellationToken,
    /// What is being processed is given up.
    cut: CancellationToken,
}

/// Works until `shutdown`, the end of the source or the panic of a worker, then drains. Only the
/// first is no error.
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
    tracing::info!(is_requested, "the consumer stops: nothing more is fetched");
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
    pub(super) fn new(consumer: Consumer<S>) -> Result<Self, Error> {
        let settings = consumer.settings;
        let capacity = settings
            .concurrency
            .saturating_mul(settings.batches.max)
            // Two: beside a message that is tried again in place, another one can succeed.
            .clamp(2, Semaphore::MAX_PERMITS);
        let routes = consumer.routes.check(&consumer.idem, &consumer.pool)?;
        let breakers = Breakers::new(&routes, consumer.status);
        let inbox = consumer.source.inbox().cloned();
        let destinations = routes
            .handled()
            .into_iter()
            .filter(|handled| inbox.as_ref() != Some(handled));
        let requeued = Requeued::new(&consumer.pool, destinations, routes.unrouted()?);
        Ok(Self {
            pool: consumer.pool,
            routes,
            idem: consumer.idem,
            settings,
            is_ordered: settings
                .is_ordered
                .unwrap_or_else(|| consumer.source.keeps_order_of_keys()),
            intake: Mutex::new(Intake::new(consumer.source, requeued)),
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

    /// Lets the workers finish what they process within the grace, and gives back the rest. Five
    /// steps follow the grace, each of [`LAST_WORDS`] at most.
    async fn drain(&self, workers: &mut Workers) {
        self.stop.cancel();
        let grace = self.settings.grace;
        if timeout(grace, workers.ended()).await.is_err() {
            tracing::warn!(
                ?grace,
                "what has not ended within its grace is rolled back and given back"
            );
            self.cut.cancel();
            if timeout(LAST_WORDS, workers.ended()).await.is_err() {
                self.count_unsettled(self.held().saturating_sub(self.queue.len()));
                // A handler that blocks its thread can still commit: its successors stay here until
                // then.
                workers.abort().await;
            }
        }
        if timeout(LAST_WORDS, closed()).await.is_err() {
            tracing::warn!("the database may still execute statements of what was rolled back");
        }
        // Not before: a successor of a message that is being processed must not be handled
        // elsewhere meanwhile.
        let until = Instant::now() + LAST_LETTER;
        if timeout(LAST_WORDS, self.give_back_the_rest(until))
            .await
            .is_err()
        {
            tracing::warn!("the broker does not take back what was waiting");
        }
        let Ok(near_limit) = timeout(LAST_WORDS, self.close()).await else {
            tracing::warn!("the source does not close");
            return;
        };
        let messages = near_limit.len();
        let until = Instant::now() + LAST_LETTER;
        let near_limit = near_limit.into_iter().map(Delivery::into_parts);
        if timeout(LAST_WORDS, self.keep_last_deliveries(near_limit, until))
            .await
            .is_err()
        {
            tracing::warn!(
                messages,
                within = ?LAST_WORDS,
                "some of the messages that their broker may not deliver again are not kept"
            );
        }
    }

    // Collecting

    /// Waits for its turn and then for messages; nothing when there is no more to do.
    async fn collect(&self) -> Vec<Held> {
        let mut intake = self.intake.lock().await;
        let mut batch: Vec<Held> = Vec::new();
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
                Next::Message(held) => {
                    batch.push(held);
                    until.get_or_insert_with(|| later(self.settings.batches.linger));
                    continue;
                }
                Next::TooLarge => return batch,
                // The batch may be what holds the bytes that the next message waits for.
                Next::Nothing if self.queue.has_ahead() && !batch.is_empty() => return batch,
                Next::Nothing if self.queue.admit_beside_delayed(self.held()) => continue,
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
                held = self.fetch(&mut intake), if !intake.has_ended() && !self.queue.has_ahead() => match held {
                    Some(held) => self.queue.push(held),
                    None => self.source_has_ended(),
                },
            }
        }
    }

    /// Gives back what no worker has begun to process, and waits until something can be tried or
    /// the consumer is stopped.
    async fn wait_for_environment(&self, mut unbegun: Vec<Held>) {
        unbegun.extend(std::iter::from_fn(|| self.queue.take_unbegun()));
        let mut given_back: FuturesUnordered<_> =
            unbegun.into_iter().map(|held| self.away(held)).collect();
        // A silent broker keeps a settlement for long, and this worker is the only one that
        // fetches.
        tokio::select! {
            () = async { while given_back.next().await.is_some() {} } => {}
            () = async { self.stop.cancelled().await; sleep(LAST_WORDS).await } => {
                self.count_unsettled(given_back.len());
            }
        }
        drop(given_back);
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = self.breakers.wait(&self.pool) => {}
        }
    }

    /// Cancel safe, as the source is.
    async fn fetch(&self, intake: &mut Intake<S>) -> Option<Held> {
        let permit = Arc::clone(&self.room).acquire_owned().await.ok()?;
        let delivery = intake.next().await?;
        Some(Held::new(delivery, self.is_ordered, permit))
    }

    /// How many messages are held.
    fn held(&self) -> usize {
        self.capacity.saturating_sub(self.room.available_permits())
    }

    fn holds_nothing(&self) -> bool {
        self.held() == 0
    }

    /// A message that is larger than a batch is a batch of its own.
    fn bytes_left(&self, batch: &[Held]) -> usize {
        match batch {
            [] => usize::MAX,
            batch => self
                .settings
                .max_batch_bytes()
                .saturating_sub(batch.iter().map(Held::size).sum()),
        }
    }

    /// Whoever has the turn waits from now on until nothing is held any more.
    fn source_has_ended(&self) {
        self.has_ended.swap(true, Ordering::AcqRel);
    }

    // Processing

    async fn process(&self, batch: Vec<Held>) {
        for (route, group) in self.by_route(batch).await {
            if let Some(pause) = self.breakers.pause_of(route.number) {
                let given_back = group
                    .into_iter()
                    .map(|held| self.excused(held, pause, Outcome::GivenBack, PAUSED));
                join_all(given_back).await;
                continue;
            }
            let messages: Vec<Message> = group.iter().map(|held| held.message.clone()).collect();
            let began = Instant::now();
            let answers = tokio::select! {
                biased;
                () = self.cut.cancelled() => None,
                answers = attempt(&self.idem, &self.pool, route, &messages) => Some(answers),
            };
            match answers {
                Some(answers) => {
                    let ends = group.into_iter().zip(answers);
                    join_all(ends.map(|(held, answer)| self.conclude(held, route, began, answer)))
                        .await;
                }
                None => {
                    join_all(group.into_iter().map(|held| self.give_back_attempted(held))).await;
                }
            }
        }
    }

    /// Messages by their routes, each in the order of delivery. What nobody takes is refused here.
    async fn by_route(&self, batch: Vec<Held>) -> Vec<(&Route, Vec<Held>)> {
        let mut groups: Vec<(&Route, Vec<Held>)> = Vec::new();
        for mut held in batch {
            let found = unwinding(async { self.routes.find(&held.message) }).await;
            match found {
                Ok(Some(route)) => {
                    held.message = held.message.with_destination(route.destination.clone());
                    match groups
                        .iter_mut()
                        .find(|(other, _)| other.number == route.number)
                    {
                        Some((_, group)) => group.push(held),
                        None => groups.push((route, vec![held])),
                    }
                }
                Ok(None) => {
                    let reason = "no route takes this message";
                    self.reject(held, reason.into(), KeptAs::Hash).await;
                }
                Err(panic) => {
                    self.failed(held, &Error::Handler(panic.into()), Duration::ZERO)
                        .await
                }
            }
        }
        groups
    }

    async fn conclude(
        &self,
        held: Held,
        route: &Route,
        began: Instant,
        answer: Result<Processed, Error>,
    ) {
        if let Ok(processed) = &answer {
            let is_handled = matches!(
                processed,
                Processed::New { .. } | Processed::Unprotected { .. }
            );
            self.breakers.succeeded(route.number, began, is_handled);
        }
        let kept_as = match &answer {
            Ok(Processed::Mismatch) => KeptAs::Hash,
            _ => KeptAs::Itself,
        };
        match Verdict::of(answer) {
            Verdict::Over(Settlement::Reject { reason }, _) => {
                self.reject(held, reason, kept_as).await
            }
            Verdict::Over(settlement, outcome) => {
                self.forget(&held);
                self.settle(held, settlement, outcome).await;
            }
            Verdict::Again { after } => {
                self.excused(held, after, Outcome::Retried, IN_PROGRESS)
                    .await
            }
            Verdict::Failed { error, after } => self.failed(held, &error, after).await,
            Verdict::Away(error) => {
                let attempted = Attempted {
                    identity: identity(&held.message),
                    message_id: held.message.message_id(),
                    route: route.number,
                };
                match self.breakers.judge(attempted, &error) {
                    Culprit::Message => self.failed(held, &error, Duration::ZERO).await,
                    Culprit::Environment { after } => {
                        // The worker that fetches stops at once.
                        self.changed.notify_one();
                        self.excused(held, after, Outcome::GivenBack, &causes(&error))
                            .await;
                    }
                }
            }
        }
    }

    /// The message has ended one way or the other.
    fn forget(&self, held: &Held) {
        self.failures.forget(&held.message);
        self.breakers.forget(|| identity(&held.message));
    }

    // Settling

    async fn failed(&self, mut held: Held, error: &Error, at_least: Duration) {
        if held.receipt.is_in_charge() {
            return self.pass_on(held, error).await;
        }
        let (failures, pause) = self.failures.count(&mut held);
        match pause {
            Some(pause) => {
                let after = pause.max(at_least);
                tracing::warn!(
                    error = causes(error),
                    ?after,
                    attempt = failures,
                    destination = held.message.given_destination().map(Destination::as_str),
                    message_id = held.message.message_id(),
                    "a message failed, and is tried again"
                );
                self.again(held, Settlement::Retry { after }, after, Outcome::Retried)
                    .await;
            }
            None => {
                let reason = format!("failed too often: {}", causes(error));
                self.reject(held, reason, KeptAs::Itself).await;
            }
        }
    }

    /// Leaves a failure to those who deliver.
    async fn pass_on(&self, held: Held, error: &Error) {
        let Held {
            message,
            receipt,
            permit,
            ..
        } = held;
        let told = in_time(async { receipt.failed(causes(error)).await }).await;
        let settlement = match told {
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
            Settlement::Reject { .. } => Outcome::Rejected,
            _ => Outcome::Retried,
        });
        telemetry::settled(message.given_destination(), &settlement);
        self.let_go(None, permit);
    }

    /// Lets it come again for what was no failure. Its broker may delete it for that: then the
    /// database keeps it.
    async fn excused(&self, held: Held, after: Duration, outcome: Outcome, cause: &str) {
        // A message that keeps its order waits in place, and is not returned.
        if held.sequence.is_none() && held.costs_delivery_near_limit() {
            let reason = format!("its broker may delete it when it is returned again: {cause}");
            self.reject(held, reason, KeptAs::Itself).await;
        } else {
            self.release(held, after, outcome).await;
        }
    }

    /// The same while the database is away, or cannot keep it.
    async fn away(&self, held: Held) {
        self.release(held, self.failures.first_pause(), Outcome::GivenBack)
            .await;
    }

    async fn release(&self, held: Held, after: Duration, outcome: Outcome) {
        self.again(held, Settlement::Release { after }, after, outcome)
            .await;
    }

    async fn reject(&self, held: Held, reason: String, kept_as: KeptAs) {
        let destination = held.message.given_destination();
        if held.receipt.keeps_rejected() {
            tracing::warn!(
                reason,
                destination = destination.map(Destination::as_str),
                message_id = held.message.message_id(),
                topic = held.message.topic(),
                "a message is rejected"
            );
            self.forget(&held);
            return self
                .settle(held, Settlement::Reject { reason }, Outcome::Rejected)
                .await;
        }
        match self.keep_letter(&held.message, kept_as, &reason).await {
            Ok(_) => {
                self.forget(&held);
                telemetry::settled(
                    held.message.given_destination(),
                    &Settlement::Reject { reason },
                );
                self.counters.count(Outcome::Rejected);
                self.settle_at_broker(held, Settlement::Acknowledge).await;
            }
            // It stays at its broker.
            Err(error) if is_of_environment(&error) => {
                self.breakers.trip_all(&error);
                self.changed.notify_one();
                self.away(held).await;
            }
            Err(error) => {
                let after = self.failures.pause_unkept(&held.message);
                tracing::warn!(
                    error = causes(&error),
                    ?after,
                    message_id = held.message.message_id(),
                    "a rejected message cannot be kept yet"
                );
                self.release(held, after, Outcome::GivenBack).await;
            }
        }
    }

    /// Keeps a message in `idem.dead_letter`. Returns false when it is there already, or was
    /// processed.
    async fn keep_letter(
        &self,
        message: &Message,
        kept_as: KeptAs,
        reason: &str,
    ) -> Result<bool, Error> {
        let (destination, kept_as) = match message.given_destination() {
            Some(destination) => (destination.clone(), kept_as),
            // An id is unique within a destination.
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

    /// Lets it come again: from its broker or, where that would reorder it or may delete it, in
    /// place.
    async fn again(&self, held: Held, settlement: Settlement, after: Duration, outcome: Outcome) {
        if held.sequence.is_none() && !held.may_end_with_release() {
            return self.settle(held, settlement, outcome).await;
        }
        if outcome == Outcome::Retried {
            self.counters.count(outcome);
        }
        self.queue.delay(held, later(after));
        self.changed.notify_one();
    }

    async fn settle(&self, held: Held, settlement: Settlement, outcome: Outcome) {
        self.counters.count(outcome);
        telemetry::settled(held.message.given_destination(), &settlement);
        self.settle_at_broker(held, settlement).await;
    }

    /// Settles it at its broker, and lets it go.
    async fn settle_at_broker(&self, held: Held, settlement: Settlement) {
        let Held {
            message,
            receipt,
            sequence,
            permit,
            ..
        } = held;
        if let Err(error) = in_time(async { receipt.settle(settlement).await }).await {
            self.not_confirmed(&message, &*error);
        }
        self.let_go(sequence, permit);
    }

    fn not_confirmed(&self, message: &Message, error: &(dyn std::error::Error + 'static)) {
        tracing::warn!(
            error,
            message_id = message.message_id(),
            "the settlement is not confirmed: the message may come again"
        );
        self.counters.failed_settlements(1);
    }

    /// It is settled, and no longer held.
    fn let_go(&self, sequence: Option<String>, permit: Permit) {
        if let Some(sequence) = &sequence {
            self.queue.release(sequence);
        }
        drop(permit);
        // Without a wait for this the source is not disturbed. A plain load of `has_ended` could be
        // early: this one is after the end of the source, or before its worker looks at the
        // permits.
        let is_awaited = sequence.is_some() || self.queue.has_ahead();
        if is_awaited || self.has_ended.fetch_or(false, Ordering::AcqRel) {
            self.changed.notify_one();
        }
    }

    async fn give_back_the_rest(&self, until: Instant) {
        let (last_deliveries, rest): (Vec<_>, Vec<_>) = self
            .queue
            .drain()
            .into_iter()
            .partition(Held::may_end_with_release);
        let given_back = async {
            // One after the other: the broker may deliver them again in this order.
            let mut rest = rest.into_iter();
            while let Some(held) = rest.next() {
                if timeout_at(until, self.give_back(held)).await.is_err() {
                    return self.count_unsettled(1 + rest.len());
                }
            }
        };
        let last_deliveries = last_deliveries
            .into_iter()
            .map(|held| (held.message, held.receipt));
        tokio::join!(
            given_back,
            self.keep_last_deliveries(last_deliveries, until)
        );
    }

    /// Gives back what this worker was processing.
    async fn give_back_attempted(&self, held: Held) {
        if held.may_end_with_release() {
            // The database cannot keep it before the rollback of its attempt has ended.
            self.queue.delay(held, Instant::now());
        } else {
            self.give_back(held).await;
        }
    }

    async fn give_back(&self, held: Held) {
        let settlement = held.given_back();
        self.settle(held, settlement, Outcome::GivenBack).await;
    }

    /// Returns what the source has fetched ahead. All workers have ended.
    async fn close(&self) -> Vec<Delivery> {
        let closed = self.intake.lock().await.close().await;
        self.counters.returned(closed.returned);
        closed.near_limit
    }

    /// Keeps messages that their broker may not deliver again: all at the same time, because one
    /// whose claim another transaction holds is tried until the step ends.
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

    /// The consumer stops: a message that its broker may not deliver again is kept where rejected
    /// messages are kept, or in the database. When that fails its receipt is dropped, and its
    /// source may hand it over once more when it is closed.
    async fn keep_last_delivery(
        &self,
        message: Message,
        receipt: Box<dyn Receipt>,
        until: Instant,
    ) {
        const REASON: &str = "the consumer stopped before it handled this message, and its broker may not deliver it again";
        let (message, kept_as) = self.routed(message).await;
        let kept = if receipt.keeps_rejected() {
            let broker =
                settled_by(until, receipt, Settlement::reject(REASON)).inspect_err(|error| {
                    tracing::warn!(
                        error = causes(&**error),
                        message_id = message.message_id(),
                        "the broker has not kept a message"
                    );
                });
            let database = self.keep_last_letter(&message, kept_as, REASON, until);
            let keeper = keep_somewhere(broker, database, LAST_LETTER / 2).await;
            if !matches!(keeper, Ok(Keeper::Broker)) {
                self.counters.failed_settlements(1);
            }
            if matches!(keeper, Ok(Keeper::Database { .. })) {
                tracing::warn!(
                    message_id = message.message_id(),
                    "the database keeps a message, because its broker did not confirm that it does"
                );
            }
            keeper.map(|keeper| match keeper {
                Keeper::Broker => true,
                Keeper::Database { is_new } => is_new,
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
                self.counters.count(Outcome::Rejected);
            }
            // It was processed, or its source has handed it over a second time.
            Ok(false) => self.counters.count(Outcome::Duplicate),
            Err(error) => tracing::error!(
                error = causes(&error),
                destination = message.given_destination().map(Destination::as_str),
                message_id = message.message_id(),
                "a message that its broker may not deliver again is not kept"
            ),
        }
    }

    /// Keeps a message as a dead letter. It tries again when the database is away, and when the
    /// claim of the message is held: behind a pooler, the server ends a transaction later that was
    /// cut.
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

    /// The message with the destination of its route, which it may not have yet.
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

    /// So many settlements are about to be given up.
    fn count_unsettled(&self, unsettled: usize) {
        tracing::warn!(
            unsettled,
            "the time limit of a shutdown ended before these messages were settled: they may come again"
        );
        self.counters.failed_settlements(unsettled as u64);
    }
}

/// Whether a letter was not kept because of the environment. A limit of letters
/// (configuration_limit_exceeded) says nothing about messages that do not become one.
fn is_of_environment(error: &Error) -> bool {
    is_environmental(error) && error.sqlstate() != Some(&SqlState::CONFIGURATION_LIMIT_EXCEEDED)
}

/// Whether a letter that was not kept may be kept before a stop ends: the database is back, or
/// another transaction lets go of the claim.
fn may_soon_be_kept(error: &Error) -> bool {
    error.kind() == ErrorKind::Conflict || is_of_environment(error)
}

/// What a receipt returns. A panic and a silent broker are failures: the message comes again.
async fn in_time<T>(
    told: impl Future<Output = Result<T, TransportError>>,
) -> Result<T, TransportError> {
    match timeout(SETTLEMENT, unwinding(told)).await {
        Ok(told) => told.unwrap_or_else(|panic| Err(panic.into())),
        Err(_) => {
            Err(format!("the broker did not confirm the settlement within {SETTLEMENT:?}").into())
        }
    }
}

/// The same at a stop, whose steps are short.
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

/// After this time. Whoever means for ever says [`Duration::MAX`], which no clock can add.
fn later(after: Duration) -> Instant {
    Instant::now() + after.min(LONGEST_WAIT)
}

/// Sleeps until then, or for ever.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
