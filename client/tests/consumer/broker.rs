//! A broker in memory: delivers at least once, again what is not acknowledged, and takes down what
//! it is told.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures_util::future::BoxFuture;
use idem_client::{Closed, Delivery, Message, Receipt, Settlement, Source, TransportError};
use tokio::{sync::Notify, time::Instant};

/// Also the source: its clones share the queue.
#[derive(Clone, Default)]
pub struct Broker(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    ready: VecDeque<Copy>,
    delayed: Vec<(Instant, Copy)>,
    unsettled: HashMap<u64, Copy>,
    deliveries: u64,
    is_closed: bool,
    /// So many deliveries of a message are counted.
    counts: u32,
    /// Only failures are counted.
    counts_failures: bool,
    /// It drops rejected messages.
    drops_rejected: bool,
    failures: VecDeque<Failure>,
    /// So many settlements fail.
    deaf: u32,
    /// Settlements are never answered.
    is_mute: bool,
    /// Settlements of the message with this id are never answered.
    silent_about: Option<String>,
    /// A return may delete a message, and all messages have been sent ahead.
    is_near_limit: bool,
    told: Told,
}

#[derive(Clone, Debug)]
struct Copy {
    message: Message,
    /// As the broker counts them.
    deliveries: u32,
    is_redelivered: bool,
}

/// What the broker was told, and what it saw.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// The ids of acknowledged messages, in order.
    pub acknowledged: Vec<String>,
    /// The ids of messages that failed, and when they shall come again.
    pub retried: Vec<(String, Duration)>,
    /// The ids of messages that were released, and when they shall come again.
    pub released: Vec<(String, Duration)>,
    /// The ids of refused messages, and why.
    pub rejected: Vec<(String, String)>,
    /// The ids of messages whose receipts were dropped.
    pub dropped: Vec<String>,
    /// The ids of messages whose settlement is not answered.
    pub ignored: Vec<String>,
    /// The most messages that were unsettled at a time.
    pub most_unsettled: usize,
    /// How often it was asked for a message.
    pub asked: u64,
}

/// How the next answer goes wrong.
pub enum Failure {
    Error,
    Panic,
}

impl Broker {
    pub fn with(messages: impl IntoIterator<Item = Message>) -> Self {
        let broker = Self::default();
        messages
            .into_iter()
            .for_each(|message| broker.send(message));
        broker
    }

    /// Tells with each delivery the how manyth it is.
    pub fn counting(self) -> Self {
        self.state().counts = u32::MAX;
        self
    }

    /// Counts the failures of a message and not its releases, as a quorum queue of RabbitMQ 4.3.
    pub fn counting_failures(self) -> Self {
        self.state().counts_failures = true;
        self.counting()
    }

    /// Drops rejected messages, as a queue without a dead-letter exchange does.
    pub fn dropping_rejected(self) -> Self {
        self.state().drops_rejected = true;
        self
    }

    /// Tells with the first delivery that it is the first one, and nothing with later ones, as a
    /// classic queue of RabbitMQ.
    pub fn counting_the_first(self) -> Self {
        self.state().counts = 1;
        self
    }

    /// The source ends when everything is acknowledged or refused.
    pub fn closed(self) -> Self {
        self.state().is_closed = true;
        self.0.changed.notify_waiters();
        self
    }

    pub fn failing(self, failures: impl IntoIterator<Item = Failure>) -> Self {
        self.state().failures.extend(failures);
        self
    }

    /// So many settlements fail: these messages come again.
    pub fn deaf(self, settlements: u32) -> Self {
        self.state().deaf = settlements;
        self
    }

    /// Settlements are never answered.
    pub fn mute(self) -> Self {
        self.state().is_mute = true;
        self
    }

    /// Settlements of the message with this id are never answered.
    pub fn silent_about(self, id: &str) -> Self {
        self.state().silent_about = Some(id.to_owned());
        self
    }

    /// A return may delete a message. A close hands the messages that wait to the consumer.
    pub fn near_limit(self) -> Self {
        self.state().is_near_limit = true;
        self
    }

    pub fn send(&self, message: Message) {
        self.state().ready.push_back(Copy {
            message,
            deliveries: 0,
            is_redelivered: false,
        });
        self.0.changed.notify_waiters();
    }

    pub fn told(&self) -> Told {
        self.state().told.clone()
    }

    /// How many nobody holds.
    pub fn waiting(&self) -> usize {
        let state = self.state();
        state.ready.len() + state.delayed.len()
    }

    /// How many a consumer holds.
    pub fn unsettled(&self) -> usize {
        self.state().unsettled.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0
            .state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn deliver(&self) -> Result<Answer, TransportError> {
        let mut state = self.state();
        state.told.asked += 1;
        match state.failures.pop_front() {
            Some(Failure::Error) => return Err("the broker hiccups".into()),
            Some(Failure::Panic) => {
                drop(state);
                panic!("the source has a bug");
            }
            None => {}
        }
        let now = Instant::now();
        while let Some(at) = state.delayed.iter().position(|(due, _)| *due <= now) {
            let (_, copy) = state.delayed.remove(at);
            state.ready.push_back(copy);
        }
        let Some(mut copy) = state.ready.pop_front() else {
            if state.is_closed && state.delayed.is_empty() && state.unsettled.is_empty() {
                return Ok(Answer::End);
            }
            return Ok(Answer::NotBefore(
                state.delayed.iter().map(|(due, _)| *due).min(),
            ));
        };
        copy.deliveries += 1;
        // RabbitMQ 4.3 shows itself when it delivers a message again.
        let counts_releases = !(state.counts_failures && copy.is_redelivered);
        copy.is_redelivered = true;
        let mut message = copy.message.clone();
        if copy.deliveries <= state.counts {
            message = message.with_deliveries(copy.deliveries);
        }
        state.deliveries += 1;
        let tag = state.deliveries;
        state.unsettled.insert(tag, copy);
        state.told.most_unsettled = state.told.most_unsettled.max(state.unsettled.len());
        let receipt = Ticket {
            broker: self.clone(),
            tag,
            counts_releases,
            drops_rejected: state.drops_rejected,
            is_near_limit: state.is_near_limit,
        };
        Ok(Answer::Delivery(Box::new(Delivery::new(message, receipt))))
    }

    fn hears(&self, tag: u64) -> (bool, bool) {
        let mut state = self.state();
        let is_deaf = state.deaf > 0;
        state.deaf = state.deaf.saturating_sub(1);
        let id = state.unsettled.get(&tag).map(|copy| id(&copy.message));
        let is_mute = state.is_mute || (id.is_some() && id == state.silent_about);
        state.told.ignored.extend(id.filter(|_| is_mute));
        (is_mute, is_deaf)
    }

    fn settle(&self, tag: u64, settlement: Option<Settlement>) {
        let mut state = self.state();
        let Some(mut copy) = state.unsettled.remove(&tag) else {
            return;
        };
        let id = id(&copy.message);
        match settlement {
            Some(Settlement::Acknowledge) => state.told.acknowledged.push(id),
            Some(Settlement::Retry { after }) => {
                state.told.retried.push((id, after));
                state.delayed.push((Instant::now() + after, copy));
            }
            Some(Settlement::Release { after }) => {
                state.told.released.push((id, after));
                copy.deliveries -= u32::from(state.counts_failures);
                state.delayed.push((Instant::now() + after, copy));
            }
            Some(Settlement::Reject { reason }) => state.told.rejected.push((id, reason)),
            // A dropped receipt releases its message.
            None => {
                state.told.dropped.push(id);
                copy.deliveries -= u32::from(state.counts_failures);
                state.ready.push_back(copy);
            }
        }
        self.0.changed.notify_waiters();
    }
}

enum Answer {
    Delivery(Box<Delivery>),
    NotBefore(Option<Instant>),
    End,
}

impl Source for Broker {
    async fn next(&mut self) -> Result<Option<Delivery>, TransportError> {
        loop {
            let shared = Arc::clone(&self.0);
            let changed = shared.changed.notified();
            match self.deliver()? {
                Answer::Delivery(delivery) => return Ok(Some(*delivery)),
                Answer::End => return Ok(None),
                Answer::NotBefore(Some(due)) => {
                    let _ = tokio::time::timeout_at(due, changed).await;
                }
                Answer::NotBefore(None) => changed.await,
            }
        }
    }

    async fn close(&mut self) -> Closed {
        let mut ahead = Vec::new();
        while self.state().is_near_limit
            && let Ok(Answer::Delivery(delivery)) = self.deliver()
        {
            ahead.push(*delivery);
        }
        Closed::default().near_limit(ahead)
    }
}

struct Ticket {
    broker: Broker,
    tag: u64,
    counts_releases: bool,
    drops_rejected: bool,
    is_near_limit: bool,
}

impl Receipt for Ticket {
    fn settle(
        self: Box<Self>,
        settlement: Settlement,
    ) -> BoxFuture<'static, Result<(), TransportError>> {
        Box::pin(async move {
            let (is_mute, is_deaf) = self.broker.hears(self.tag);
            if is_mute {
                std::future::pending::<()>().await;
            }
            if is_deaf {
                return Err("the broker has gone away".into());
            }
            self.broker.settle(self.tag, Some(settlement));
            Ok(())
        })
    }

    fn counts_releases(&self) -> bool {
        self.counts_releases
    }

    fn keeps_rejected(&self) -> bool {
        !self.drops_rejected
    }

    fn is_near_limit(&self) -> bool {
        self.is_near_limit
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.broker.settle(self.tag, None);
    }
}

pub fn id(message: &Message) -> String {
    message.message_id().unwrap_or_default().to_owned()
}
