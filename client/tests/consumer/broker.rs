//! An in-memory broker: it delivers at least once, redelivers unacknowledged messages, and records
//! all settlements.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures_util::future::BoxFuture;
use idem_client::{Closed, Delivery, Message, Receipt, Settlement, Source, TransportError};
use tokio::{sync::Notify, time::Instant};

/// The broker, which is also the source. Its clones share the queue.
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
    /// The number of deliveries of each message, from the first one, that carry a delivery count.
    counts: u32,
    /// True if the broker counts failures only. It does not count releases then.
    counts_failures: bool,
    /// True if the broker drops rejected messages.
    drops_rejected: bool,
    failures: VecDeque<Failure>,
    /// The number of settlements, from the next one, that fail.
    deaf: u32,
    /// True if the broker never confirms a settlement.
    is_mute: bool,
    /// The id of the message for which settlements are never confirmed.
    silent_about: Option<String>,
    /// True if all messages are near their delivery limit, so that a return may delete a message.
    /// All messages count as prefetched then.
    is_near_limit: bool,
    told: Told,
}

#[derive(Clone, Debug)]
struct Copy {
    message: Message,
    /// The number of deliveries of this message that the broker has counted.
    deliveries: u32,
    is_redelivered: bool,
}

/// The settlements and other events that the broker has recorded.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// The ids of acknowledged messages, in order.
    pub acknowledged: Vec<String>,
    /// The ids of retried messages, with the delay before redelivery.
    pub retried: Vec<(String, Duration)>,
    /// The ids of released messages, with the delay before redelivery.
    pub released: Vec<(String, Duration)>,
    /// The ids of rejected messages, with the reason.
    pub rejected: Vec<(String, String)>,
    /// The ids of messages with a receipt that was dropped without a settlement.
    pub dropped: Vec<String>,
    /// The ids of messages with a settlement that the broker did not confirm.
    pub ignored: Vec<String>,
    /// The highest number of messages that were unsettled at the same time.
    pub most_unsettled: usize,
    /// The number of times that the consumer polled for a message.
    pub asked: u64,
}

/// The fault of the next poll.
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

    /// Adds a delivery count to each delivery.
    pub fn counting(self) -> Self {
        self.state().counts = u32::MAX;
        self
    }

    /// Counts the failures of a message and not its releases, as a quorum queue of RabbitMQ 4.3
    /// does.
    pub fn counting_failures(self) -> Self {
        self.state().counts_failures = true;
        self.counting()
    }

    /// Drops rejected messages, as a queue without a dead-letter exchange does.
    pub fn dropping_rejected(self) -> Self {
        self.state().drops_rejected = true;
        self
    }

    /// Adds a delivery count to the first delivery of a message only, as a classic queue of
    /// RabbitMQ does.
    pub fn counting_the_first(self) -> Self {
        self.state().counts = 1;
        self
    }

    /// Ends the source when every message is acknowledged or rejected.
    pub fn closed(self) -> Self {
        self.state().is_closed = true;
        self.0.changed.notify_waiters();
        self
    }

    pub fn failing(self, failures: impl IntoIterator<Item = Failure>) -> Self {
        self.state().failures.extend(failures);
        self
    }

    /// Makes the next `settlements` settlements fail. Their messages are redelivered.
    pub fn deaf(self, settlements: u32) -> Self {
        self.state().deaf = settlements;
        self
    }

    /// Makes the broker confirm no settlement.
    pub fn mute(self) -> Self {
        self.state().is_mute = true;
        self
    }

    /// Makes the broker confirm no settlement of the message with this id.
    pub fn silent_about(self, id: &str) -> Self {
        self.state().silent_about = Some(id.to_owned());
        self
    }

    /// Marks all messages as near their delivery limit, so that a return may delete a message. When
    /// the source is closed, it hands over the messages that are not delivered yet.
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

    /// Returns the number of messages that wait for delivery or redelivery.
    pub fn waiting(&self) -> usize {
        let state = self.state();
        state.ready.len() + state.delayed.len()
    }

    /// Returns the number of messages that are delivered and not settled.
    pub fn unsettled(&self) -> usize {
        self.state().unsettled.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0
            .state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn deliver(&self) -> Result<Poll, TransportError> {
        let mut state = self.state();
        state.told.asked += 1;
        match state.failures.pop_front() {
            Some(Failure::Error) => return Err("the broker failed".into()),
            Some(Failure::Panic) => {
                drop(state);
                panic!("a bug in the source");
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
                return Ok(Poll::End);
            }
            return Ok(Poll::NotBefore(
                state.delayed.iter().map(|(due, _)| *due).min(),
            ));
        };
        copy.deliveries += 1;
        // As with RabbitMQ 4.3, the source can detect only from a redelivery that releases are not
        // counted.
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
        Ok(Poll::Delivery(Box::new(Delivery::new(message, receipt))))
    }

    fn behavior_of(&self, tag: u64) -> (bool, bool) {
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
            // The receipt was dropped, so its message is released.
            None => {
                state.told.dropped.push(id);
                copy.deliveries -= u32::from(state.counts_failures);
                state.ready.push_back(copy);
            }
        }
        self.0.changed.notify_waiters();
    }
}

enum Poll {
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
                Poll::Delivery(delivery) => return Ok(Some(*delivery)),
                Poll::End => return Ok(None),
                Poll::NotBefore(Some(due)) => {
                    let _ = tokio::time::timeout_at(due, changed).await;
                }
                Poll::NotBefore(None) => changed.await,
            }
        }
    }

    async fn close(&mut self) -> Closed {
        let mut ahead = Vec::new();
        while self.state().is_near_limit
            && let Ok(Poll::Delivery(delivery)) = self.deliver()
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
            let (is_mute, is_deaf) = self.broker.behavior_of(self.tag);
            if is_mute {
                std::future::pending::<()>().await;
            }
            if is_deaf {
                return Err("the broker is unavailable".into());
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
