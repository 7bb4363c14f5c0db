//! Publishes one leased batch: many effects concurrently, and effects of one key one after the
//! other. The effects of one key in a batch are called a *sequence*.
//!
//! Everything that takes time is a future that ends with an [`Event`], and one loop handles the
//! events. The statements in the database (extending the lease, parking) need the current token, so
//! only one of them runs at a time.

use std::{
    collections::{HashSet, VecDeque},
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use idem_client::relay::{Batch, OutgoingMessage};
use tokio::{
    select,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, warn};

use super::{
    PublishError, Publisher,
    effect_memory::EffectMemory,
    errors::{is_final, is_gone},
    key_order::KeyOrder,
    publisher::check_within,
    settings::Settings,
    statements::{RelayStatements, retry_until},
    topic_state::TopicStates,
};
use crate::{
    Error,
    backoff::Backoff,
    error::causes,
    telemetry::{self, Publishing, warn_if_new},
};

/// The time without a reply to any effect after which the broker is checked. A client library may
/// wait much longer before it reports that the broker is unavailable.
const SILENCE: Duration = Duration::from_secs(5);

/// The result of a batch.
#[derive(Debug)]
pub(super) struct BatchOutcome {
    /// The token of the lease.
    pub(super) token: i64,
    /// Whether every effect is published or parked, so that the batch can be acknowledged.
    /// Otherwise the lease has ended, or the relay stops.
    pub(super) is_done: bool,
}

/// The state that a partition keeps from batch to batch.
pub(super) struct Context<'a, P> {
    pub(super) steps: &'a RelayStatements,
    pub(super) publisher: &'a P,
    pub(super) stop: &'a CancellationToken,
    pub(super) memory: &'a mut EffectMemory,
    pub(super) broker: &'a mut Broker,
}

/// Whether the broker is unavailable, and the back-off in that case.
pub(super) struct Broker {
    pub(super) is_away: bool,
    pub(super) backoff: Backoff,
}

enum Event<'a> {
    Published(usize, Result<(), PublishError>),
    /// The result of a check during a silence that began at this time.
    Checked(Instant, Result<(), PublishError>),
    /// The pause of a sequence is over: its next effect may be retried.
    Rested(usize),
    /// The pause of a topic is over: one of its effects may be retried.
    TopicRested(&'a str),
    /// The pause of an unavailable broker is over: it may be tried again.
    Paused,
    /// Half of the lease has passed.
    LeaseWanes,
    Extended(Instant, Result<i64, Error>),
    Parked(usize, Result<(), Error>),
}

/// Publishes a batch. `requested_at` is when its lease was requested. Returns an error only if it
/// is permanent, or if the relay no longer exists in the database.
pub(super) async fn publish<P: Publisher>(
    context: Context<'_, P>,
    batch: &Batch,
    requested_at: Instant,
) -> Result<BatchOutcome, Error> {
    let sequences = KeyOrder::new(&batch.messages, |message| {
        context.memory.is_confirmed(message)
    });
    let lease = context.steps.settings.lease;
    let reporter = &context.steps.reporter;
    let indexes = sequences.indexes();
    let topics: HashSet<&str> = indexes.map(|index| &*batch.messages[index].topic).collect();
    reporter.keep_topics(|topic| topics.contains(topic));
    let mut work = BatchInProgress {
        ready: sequences.all().collect(),
        sequences,
        topics: TopicStates::new(reporter),
        messages: &batch.messages,
        token: batch.token,
        leased_until: requested_at + lease,
        events: FuturesUnordered::new(),
        in_flight: 0,
        silent_since: requested_at,
        is_checking: false,
        has_rejected: false,
        is_paused: false,
        is_stepping: false,
        lease_wanes: false,
        to_park: VecDeque::new(),
        is_lost: false,
        context,
    };
    work.at_half_lease(requested_at);
    work.run().await
}

struct BatchInProgress<'a, P> {
    context: Context<'a, P>,
    messages: &'a [OutgoingMessage],
    sequences: KeyOrder,
    /// The sequences with an effect that can be published now.
    ready: VecDeque<usize>,
    /// The unavailable topics, with the sequences that wait for them.
    topics: TopicStates<'a>,
    events: FuturesUnordered<BoxFuture<'a, Event<'a>>>,
    in_flight: usize,
    /// When the last effect was answered, or when the first effect was sent.
    silent_since: Instant,
    /// Whether a check of the broker is running.
    is_checking: bool,
    /// Whether the broker has rejected an effect of this batch.
    has_rejected: bool,
    /// True while the broker is unavailable and its pause lasts. Nothing is published then.
    is_paused: bool,
    token: i64,
    leased_until: Instant,
    lease_wanes: bool,
    /// Whether the lease of the batch is lost. Another process may hold it.
    is_lost: bool,
    /// Whether a statement in the database is running.
    is_stepping: bool,
    to_park: VecDeque<(usize, String)>,
}

impl<'a, P: Publisher> BatchInProgress<'a, P> {
    async fn run(mut self) -> Result<BatchOutcome, Error> {
        let stop = self.context.stop;
        let grace = self.context.steps.settings.grace;
        let mut stop_at: Option<Instant> = None;
        loop {
            self.start();
            self.step();
            let is_over = self.is_lost || Instant::now() >= self.leased_until;
            let is_quiet = self.in_flight == 0 && !self.is_stepping;
            let outcome = BatchOutcome {
                token: self.token,
                is_done: is_quiet && self.sequences.is_empty(),
            };
            // When the lease has ended or the relay stops, do not wait for effects that are delayed
            // before a retry.
            if outcome.is_done || is_quiet && (is_over || stop_at.is_some()) {
                return Ok(outcome);
            }
            select! {
                Some(event) = self.events.next() => self.take(event)?,
                () = stop.cancelled(), if stop_at.is_none() => {
                    stop_at = Some(Instant::now() + grace);
                }
                () = sleep_until(self.leased_until), if !is_over => {}
                () = sleep_until(self.silent_since + SILENCE),
                    if self.in_flight > 0 && !self.is_checking => self.check_broker(),
                () = sleep_until(stop_at.unwrap_or(self.leased_until)), if stop_at.is_some() => {
                    return Ok(outcome);
                }
            }
        }
    }

    /// Starts to publish the effects that can be published now.
    fn start(&mut self) {
        let Context {
            steps, publisher, ..
        } = self.context;
        let (messages, settings) = (self.messages, &steps.settings);
        // An unavailable broker is probed with one effect.
        let at_most = if self.context.broker.is_away {
            1
        } else {
            settings.in_flight
        };
        self.ready.extend(self.topics.probes());
        let may_start = !self.is_lost && !self.is_paused && Instant::now() < self.leased_until;
        while may_start && self.in_flight < at_most {
            if self.ready.is_empty() {
                // A sequence may have come to a topic that can be probed now.
                self.ready.extend(self.topics.probes());
            }
            let Some(sequence) = self.ready.pop_front() else {
                return;
            };
            let Some(index) = self.sequences.next_of(sequence) else {
                continue;
            };
            if !self.topics.admits(&messages[index].topic, sequence) {
                continue;
            }
            if self.in_flight == 0 {
                self.silent_since = Instant::now();
            }
            self.in_flight += 1;
            let limit = settings.publish_timeout;
            let publish = async move {
                let publishing = Publishing::begin(&settings.name, &messages[index]);
                let result = timeout(limit, publisher.publish(&messages[index]));
                let result = result.instrument(publishing.span().clone()).await;
                let result = result.unwrap_or_else(|_| Err(not_confirmed(limit)));
                publishing.end(&result);
                Event::Published(sequence, result)
            };
            self.events.push(publish.boxed());
        }
    }

    /// Checks a broker that does not reply, so that the status shows early that it is unavailable.
    /// The effects stay in flight, because their publisher may still succeed.
    fn check_broker(&mut self) {
        let Context {
            steps, publisher, ..
        } = self.context;
        let (since, limit) = (self.silent_since, steps.settings.publish_timeout);
        let check = async move { Event::Checked(since, check_within(limit, publisher).await) };
        self.is_checking = true;
        self.events.push(check.boxed());
    }

    /// Starts the next statement in the database, unless one is running.
    fn step(&mut self) {
        let (steps, token, until) = (self.context.steps, self.token, self.leased_until);
        if self.is_stepping || self.is_lost || Instant::now() >= until {
            return;
        }
        // Do not extend the lease while the broker is unavailable, so that another process can
        // lease the batch and try to publish it.
        if self.lease_wanes && !self.context.broker.is_away {
            self.lease_wanes = false;
            self.is_stepping = true;
            let lease = steps.settings.lease;
            let extend = async move {
                let requested_at = Instant::now();
                Event::Extended(
                    requested_at,
                    retry_until(until, || steps.extend(token, lease)).await,
                )
            };
            self.events.push(extend.boxed());
        } else if let Some((sequence, reason)) = self.to_park.pop_front() {
            let Some(index) = self.sequences.next_of(sequence) else {
                return;
            };
            self.is_stepping = true;
            let id = self.messages[index].message_id;
            let park = async move {
                Event::Parked(
                    sequence,
                    retry_until(until, || steps.park(token, id, &reason)).await,
                )
            };
            self.events.push(park.boxed());
        }
    }

    fn take(&mut self, event: Event<'a>) -> Result<(), Error> {
        match event {
            Event::Published(sequence, result) => {
                self.in_flight -= 1;
                self.silent_since = Instant::now();
                self.published(sequence, result);
            }
            Event::Checked(since, result) => {
                self.is_checking = false;
                let is_silent = self.in_flight > 0 && self.silent_since == since;
                self.silent_since = Instant::now();
                if let (true, Err(error)) = (is_silent, result) {
                    self.context.steps.reporter.broker_fails(&error, None);
                }
            }
            Event::Rested(sequence) => self.ready.push_back(sequence),
            Event::TopicRested(topic) => self.topics.pause_ends(topic),
            Event::Paused => self.is_paused = false,
            Event::LeaseWanes => self.lease_wanes = true,
            Event::Extended(requested_at, result) => {
                self.is_stepping = false;
                if let Some(token) = self.unless_lease_lost(result)? {
                    self.token = token;
                    self.leased_until = requested_at + self.context.steps.settings.lease;
                    self.at_half_lease(requested_at);
                }
            }
            Event::Parked(sequence, result) => {
                self.is_stepping = false;
                if self.unless_lease_lost(result)?.is_some() {
                    let status = &self.context.steps.reporter.status;
                    status.send_modify(|status| status.parked += 1);
                    // Forget the failures of the effect now and not at the end of the batch,
                    // because the lease may end before that. If the effect is unparked later, it
                    // has all its attempts again.
                    let parked = self.sequences.next_of(sequence);
                    self.advance(sequence);
                    if let Some(index) = parked {
                        self.context.memory.forget(&self.messages[index]);
                        let topic = &self.messages[index].topic;
                        let mut left = self.sequences.indexes();
                        if left.all(|index| self.messages[index].topic != *topic) {
                            self.context.steps.reporter.topic_has_no_effects(topic);
                        }
                    }
                    telemetry::parked(&self.context.steps.settings.name);
                }
            }
        }
        Ok(())
    }

    fn published(&mut self, sequence: usize, result: Result<(), PublishError>) {
        let Some(index) = self.sequences.next_of(sequence) else {
            return;
        };
        let message = &self.messages[index];
        match result {
            Ok(()) => {
                self.broker_answers();
                let status = &self.context.steps.reporter.status;
                status.send_modify(|status| status.published += 1);
                self.context.memory.confirmed(message);
                self.ready.extend(self.topics.takes(&message.topic));
                self.advance(sequence);
            }
            Err(error @ PublishError::Unavailable(_)) => {
                // While the broker is unavailable, one effect at a time is published as a probe.
                // Put this sequence behind the others, so that the next probe is another effect.
                self.ready.push_back(sequence);
                self.broker_is_away(message, &error);
            }
            Err(error @ PublishError::TopicUnavailable(_)) => {
                self.broker_answers();
                if let Some(pause) = self.topics.refused(message, sequence, &error) {
                    self.after(pause, Event::TopicRested(&message.topic));
                }
            }
            Err(error) => {
                self.broker_answers();
                // The error does not show whether the topic is available, so another effect of the
                // topic is tried.
                self.topics.undecided(&message.topic, sequence);
                self.failed(sequence, message, &error);
            }
        }
    }

    /// Handles a failure that is caused by the effect itself: the effect is retried or parked.
    fn failed(&mut self, sequence: usize, message: &OutgoingMessage, error: &PublishError) {
        if let PublishError::Permanent(_) = error {
            return self.park(sequence, message, causes(error));
        }
        let Settings {
            backoff,
            max_attempts,
            ..
        } = &self.context.steps.settings;
        let attempt = self.context.memory.failed(message);
        let (id, topic, reason) = (message.message_id, &message.topic, causes(error));
        if attempt >= *max_attempts {
            self.park(
                sequence,
                message,
                format!("after {attempt} attempts: {reason}"),
            );
        } else {
            let pause = backoff.after(attempt);
            // The batch waits for the effect, so the first one of a batch is worth a warning.
            let is_first = !std::mem::replace(&mut self.has_rejected, true);
            warn_if_new!(
                is_first,
                message.id = %id,
                topic,
                attempt,
                ?pause,
                error = reason,
                "an effect is retried"
            );
            self.after(pause, Event::Rested(sequence));
        }
    }

    fn advance(&mut self, sequence: usize) {
        if self.sequences.advance(sequence) {
            self.ready.push_back(sequence);
        }
    }

    fn park(&mut self, sequence: usize, message: &OutgoingMessage, reason: String) {
        warn!(
            message.id = %message.message_id,
            topic = message.topic,
            reason,
            "an effect is parked"
        );
        self.to_park.push_back((sequence, reason));
    }

    fn broker_answers(&mut self) {
        if std::mem::take(&mut self.context.broker.is_away) {
            self.context.broker.backoff.reset();
        }
        self.context.steps.reporter.broker_answers();
    }

    /// Pauses the partition. All effects that are being published share one pause.
    fn broker_is_away(&mut self, message: &OutgoingMessage, error: &PublishError) {
        let reporter = &self.context.steps.reporter;
        reporter.broker_fails(error, Some(message));
        if self.is_paused {
            return;
        }
        let pause = self.context.broker.backoff.next();
        self.context.broker.is_away = true;
        self.is_paused = true;
        self.after(pause, Event::Paused);
    }

    /// Returns the result of a statement under the lease, or `None` if the lease has ended or is
    /// about to end.
    fn unless_lease_lost<T>(&mut self, result: Result<T, Error>) -> Result<Option<T>, Error> {
        match result {
            Ok(result) => Ok(Some(result)),
            Err(error) if is_final(&error) || is_gone(&error) => Err(error),
            Err(error) => {
                let (partition, error) = (self.context.steps.reporter.partition, causes(&error));
                warn!(
                    partition,
                    error, "the lease of a batch is lost: its effects are leased again"
                );
                self.is_lost = true;
                Ok(None)
            }
        }
    }

    fn at_half_lease(&mut self, requested_at: Instant) {
        let half = requested_at + self.context.steps.settings.lease / 2;
        self.events
            .push(sleep_until(half).map(|()| Event::LeaseWanes).boxed());
    }

    fn after(&mut self, pause: Duration, event: Event<'a>) {
        self.events.push(sleep(pause).map(|()| event).boxed());
    }
}

fn not_confirmed(limit: Duration) -> PublishError {
    PublishError::Unavailable(format!("no confirmation within {limit:?}").into())
}
