//! Publishing one leased batch: many effects under way at once, those of a key one after the other.
//!
//! Everything that takes time is a future that ends in an [`Event`], and one loop takes them in.
//! The steps in the database (keeping the lease, parking) need the token of the moment, so there is
//! one at a time.

use std::{
    collections::{HashMap, VecDeque},
    future::Future,
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{
    select,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, debug, warn};

use super::{
    Batch, OutgoingMessage, PublishError, Publisher,
    lanes::Lanes,
    memory::Memory,
    pauses::Pauses,
    runtime::Settings,
    steps::{Steps, is_final, is_gone},
    waiting::Waiting,
};
use crate::{
    Error, ErrorKind,
    error::causes,
    telemetry::{self, Publishing},
};

/// What became of a batch.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Every effect is published or parked: it can be acknowledged.
    Done { token: i64 },
    /// The lease is over, or the relay shuts down.
    Unfinished { token: i64 },
}

/// What a partition brings along from batch to batch.
pub(super) struct Context<'a, P> {
    pub(super) steps: &'a Steps,
    pub(super) publisher: &'a P,
    pub(super) stop: &'a CancellationToken,
    pub(super) memory: &'a mut Memory,
    pub(super) broker: &'a mut Broker,
}

/// Whether the broker answers, and the pauses while it does not.
pub(super) struct Broker {
    pub(super) is_away: bool,
    pub(super) pauses: Pauses,
}

enum Event<'a> {
    Published(usize, Result<(), PublishError>),
    /// A lane may try again.
    Rested(usize),
    /// An effect of this topic may be tried again.
    TopicRested(&'a str),
    /// The broker may be asked again.
    Paused,
    /// It is time to think of the lease.
    LeaseWanes,
    Extended(Instant, Result<i64, Error>),
    Parked(usize, Result<(), Error>),
}

/// Publishes a batch whose lease was asked for at this moment. The error is final, or says that
/// the relay is gone.
pub(super) async fn publish<P: Publisher>(
    context: Context<'_, P>,
    batch: &Batch,
    asked: Instant,
) -> Result<Outcome, Error> {
    let lanes = Lanes::new(&batch.messages, |message| {
        context.memory.is_confirmed(message)
    });
    let lease = context.steps.settings.lease;
    let mut topics = HashMap::new();
    for place in lanes.places() {
        *topics
            .entry(batch.messages[place].topic.as_str())
            .or_default() += 1;
    }
    context
        .steps
        .notes
        .has_batch(|topic| topics.contains_key(topic));
    let mut work = Work {
        ready: lanes.all().collect(),
        lanes,
        topics,
        waiting: Waiting::default(),
        messages: &batch.messages,
        token: batch.token,
        leased_until: asked + lease,
        events: FuturesUnordered::new(),
        in_flight: 0,
        is_paused: false,
        is_stepping: false,
        lease_wanes: false,
        to_park: VecDeque::new(),
        is_lost: false,
        context,
    };
    work.at_half_lease(asked);
    work.run().await
}

struct Work<'a, P> {
    context: Context<'a, P>,
    messages: &'a [OutgoingMessage],
    lanes: Lanes,
    /// How many effects of each topic are left.
    topics: HashMap<&'a str, usize>,
    /// Lanes whose next effect can be published now.
    ready: VecDeque<usize>,
    /// Lanes whose next effect waits for its topic.
    waiting: Waiting<'a>,
    events: FuturesUnordered<BoxFuture<'a, Event<'a>>>,
    in_flight: usize,
    /// Nothing is published while the broker is away, until it may be asked again.
    is_paused: bool,
    token: i64,
    leased_until: Instant,
    lease_wanes: bool,
    /// Another process has the batch.
    is_lost: bool,
    /// A step in the database is under way.
    is_stepping: bool,
    to_park: VecDeque<(usize, String)>,
}

impl<'a, P: Publisher> Work<'a, P> {
    async fn run(mut self) -> Result<Outcome, Error> {
        let stop = self.context.stop;
        let grace = self.context.steps.settings.grace;
        let mut given_up_at: Option<Instant> = None;
        loop {
            self.start();
            self.step();
            let is_over = self.is_lost || Instant::now() >= self.leased_until;
            let is_quiet = self.in_flight == 0 && !self.is_stepping;
            if is_quiet && self.lanes.is_empty() {
                return Ok(Outcome::Done { token: self.token });
            }
            // Who rests before another attempt is not waited for at the end.
            if is_quiet && (is_over || given_up_at.is_some()) {
                return Ok(Outcome::Unfinished { token: self.token });
            }
            select! {
                Some(event) = self.events.next() => self.take(event)?,
                () = stop.cancelled(), if given_up_at.is_none() => given_up_at = Some(Instant::now() + grace),
                () = sleep_until(self.leased_until), if !is_over => {}
                () = sleep_until(given_up_at.unwrap_or(self.leased_until)), if given_up_at.is_some() => {
                    return Ok(Outcome::Unfinished { token: self.token });
                }
            }
        }
    }

    /// Publishes what can be published now.
    fn start(&mut self) {
        let Context {
            steps, publisher, ..
        } = self.context;
        let (messages, settings) = (self.messages, &steps.settings);
        // A broker that was away is asked with one effect.
        let at_most = if self.context.broker.is_away {
            1
        } else {
            settings.in_flight
        };
        self.ready.extend(self.waiting.turns());
        let may_start = !self.is_lost && !self.is_paused && Instant::now() < self.leased_until;
        while may_start && self.in_flight < at_most {
            let Some(lane) = self.ready.pop_front() else {
                return;
            };
            let Some(place) = self.lanes.next_of(lane) else {
                continue;
            };
            if !self.waiting.admits(&messages[place].topic, lane) {
                continue;
            }
            self.in_flight += 1;
            let patience = settings.publish_timeout;
            let publish = async move {
                let publishing = Publishing::begin(&settings.name, &messages[place]);
                let answer = timeout(patience, publisher.publish(&messages[place]));
                let answer = answer.instrument(publishing.span().clone()).await;
                let answer = answer.unwrap_or_else(|_| Err(no_answer(patience)));
                publishing.end(&answer);
                Event::Published(lane, answer)
            };
            self.events.push(publish.boxed());
        }
    }

    /// Takes the next step in the database, unless one is under way.
    fn step(&mut self) {
        let (steps, token, until) = (self.context.steps, self.token, self.leased_until);
        if self.is_stepping || self.is_lost || Instant::now() >= until {
            return;
        }
        // Who cannot reach the broker lets another process try.
        if self.lease_wanes && !self.context.broker.is_away {
            self.lease_wanes = false;
            self.is_stepping = true;
            let extend = async move {
                let asked = Instant::now();
                Event::Extended(asked, again_until(until, || steps.extend(token)).await)
            };
            self.events.push(extend.boxed());
        } else if let Some((lane, reason)) = self.to_park.pop_front() {
            let Some(place) = self.lanes.next_of(lane) else {
                return;
            };
            self.is_stepping = true;
            let id = self.messages[place].message_id;
            let park = async move {
                Event::Parked(
                    lane,
                    again_until(until, || steps.park(token, id, &reason)).await,
                )
            };
            self.events.push(park.boxed());
        }
    }

    fn take(&mut self, event: Event<'a>) -> Result<(), Error> {
        match event {
            Event::Published(lane, result) => {
                self.in_flight -= 1;
                self.published(lane, result);
            }
            Event::Rested(lane) => self.ready.push_back(lane),
            Event::TopicRested(topic) => self.ready.extend(self.waiting.pause_ends(topic)),
            Event::Paused => self.is_paused = false,
            Event::LeaseWanes => self.lease_wanes = true,
            Event::Extended(asked, result) => {
                self.is_stepping = false;
                if let Some(token) = self.stepped(result)? {
                    self.token = token;
                    self.leased_until = asked + self.context.steps.settings.lease;
                    self.at_half_lease(asked);
                }
            }
            Event::Parked(lane, result) => {
                self.is_stepping = false;
                if self.stepped(result)?.is_some() {
                    self.context.steps.notes.status.parked();
                    // Also when the lease ends before the batch is done: whoever unparks it gives
                    // it all its attempts.
                    if let Some(place) = self.lanes.next_of(lane) {
                        self.context.memory.forget(&self.messages[place]);
                    }
                    telemetry::parked(&self.context.steps.settings.name);
                    self.advance(lane);
                }
            }
        }
        Ok(())
    }

    fn published(&mut self, lane: usize, result: Result<(), PublishError>) {
        let Some(place) = self.lanes.next_of(lane) else {
            return;
        };
        let message = &self.messages[place];
        match result {
            Ok(()) => {
                self.broker_answers();
                self.context.steps.notes.status.published();
                self.context.memory.confirmed(message);
                self.ready.extend(self.waiting.takes(&message.topic));
                self.context.steps.notes.topic_takes(&message.topic);
                self.advance(lane);
            }
            Err(error @ PublishError::Unavailable(_)) => {
                // Behind the others: an effect that never gets an answer is not the only probe.
                self.ready.push_back(lane);
                self.waiting.unanswered(&message.topic);
                self.broker_is_away(message, &error);
            }
            Err(error @ PublishError::TopicUnavailable(_)) => {
                self.broker_answers();
                self.context.steps.notes.topic_fails(message, &error);
                if let Some(pause) = self.waiting.refused(&message.topic, lane) {
                    self.after(pause, Event::TopicRested(&message.topic));
                }
            }
            Err(error) => {
                self.broker_answers();
                // That says nothing of the topic, so another effect of it is tried.
                self.ready.extend(self.waiting.undecided(&message.topic));
                self.failed(lane, message, &error);
            }
        }
    }

    /// An attempt failed for what the effect is: it is tried again, or parked.
    fn failed(&mut self, lane: usize, message: &OutgoingMessage, error: &PublishError) {
        if let PublishError::Permanent(_) = error {
            return self.park(lane, message, error.causes());
        }
        let Settings {
            back_off,
            max_attempts,
            ..
        } = self.context.steps.settings.as_ref();
        let attempt = self.context.memory.failed(message);
        let (id, topic, reason) = (message.message_id, &message.topic, error.causes());
        if attempt >= *max_attempts {
            self.park(lane, message, format!("after {attempt} attempts: {reason}"));
        } else {
            let pause = Pauses::after(back_off.0, back_off.1, attempt);
            debug!(message.id = %id, topic, attempt, ?pause, error = reason, "an effect is tried again");
            self.after(pause, Event::Rested(lane));
        }
    }

    fn advance(&mut self, lane: usize) {
        if let Some(place) = self.lanes.next_of(lane) {
            self.ends(&self.messages[place].topic);
        }
        if self.lanes.advance(lane) {
            self.ready.push_back(lane);
        }
    }

    /// An effect of this topic is published or parked.
    fn ends(&mut self, topic: &str) {
        if let Some(left) = self.topics.get_mut(topic) {
            *left -= 1;
            if *left == 0 {
                self.context.steps.notes.topic_has_no_effects(topic);
            }
        }
    }

    fn park(&mut self, lane: usize, message: &OutgoingMessage, reason: String) {
        warn!(message.id = %message.message_id, topic = message.topic, reason, "an effect is parked");
        self.to_park.push_back((lane, reason));
    }

    fn broker_answers(&mut self) {
        if std::mem::take(&mut self.context.broker.is_away) {
            self.context.broker.pauses.reset();
        }
        self.context.steps.notes.broker_answers();
    }

    /// The partition pauses, once for all that is under way.
    fn broker_is_away(&mut self, message: &OutgoingMessage, error: &PublishError) {
        self.context.steps.notes.broker_fails(message, error);
        if self.is_paused {
            return;
        }
        let pause = self.context.broker.pauses.next();
        self.context.broker.is_away = true;
        self.is_paused = true;
        self.after(pause, Event::Paused);
    }

    /// What a step has answered. `None`: the lease has ended, or does.
    fn stepped<T>(&mut self, result: Result<T, Error>) -> Result<Option<T>, Error> {
        match result {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if is_final(&error) || is_gone(&error) => Err(error),
            Err(error) => {
                let (partition, error) = (self.context.steps.partition, causes(&error));
                warn!(
                    partition,
                    error, "the lease of a batch is lost: it comes again"
                );
                self.is_lost = true;
                Ok(None)
            }
        }
    }

    fn at_half_lease(&mut self, asked: Instant) {
        let half = asked + self.context.steps.settings.lease / 2;
        self.events
            .push(sleep_until(half).map(|()| Event::LeaseWanes).boxed());
    }

    fn after(&mut self, pause: Duration, event: Event<'a>) {
        self.events.push(sleep(pause).map(|()| event).boxed());
    }
}

/// Repeats a step while the database is away, as long as the lease lasts.
async fn again_until<T, F: Future<Output = Result<T, Error>>>(
    until: Instant,
    step: impl Fn() -> F,
) -> Result<T, Error> {
    let mut pauses = Pauses::new(Duration::from_millis(50), Duration::from_secs(1));
    loop {
        match step().await {
            Err(error)
                if error.kind() != ErrorKind::NotClaimed
                    && !is_final(&error)
                    && !is_gone(&error)
                    && Instant::now() < until =>
            {
                sleep(pauses.next()).await;
            }
            answer => return answer,
        }
    }
}

fn no_answer(patience: Duration) -> PublishError {
    PublishError::Unavailable(format!("no confirmation within {patience:?}").into())
}
