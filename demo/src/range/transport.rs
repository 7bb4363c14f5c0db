//! An at-least-once transport in memory: it duplicates, reorders and delays messages, and loses
//! acknowledgements, but it loses no message.
//!
//! Time is virtual: each message has a due time, the message with the earliest due time is
//! delivered next, and the clock jumps to that time. So delays change the order of deliveries
//! without any real waiting.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;
use uuid::Uuid;

use super::{
    fate::{Fate, Fates, STEP},
    message::{Kind, Message},
};

/// The queue between the producer, the consumers and the relay.
pub struct Transport {
    fates: Fates,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    now: u64,
    queue: BinaryHeap<Reverse<Queued>>,
    /// The number of the last queued message. It orders messages with the same `due`.
    order: u64,
    in_flight: usize,
    publications: HashMap<(Kind, Uuid), u32>,
    delivered: HashSet<(Kind, Uuid)>,
    counts: Counts,
    /// The number of deliveries after which the transport pauses.
    pause_at: Option<u64>,
    /// Whether the relay may still publish.
    awaits_relay: bool,
}

/// The counts of what the transport has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All deliveries to consumers.
    pub deliveries: u64,
    /// The deliveries of messages that were delivered before.
    pub duplicates: u64,
    /// The acknowledgements that were lost.
    pub lost_acks: u64,
    /// The deliveries that were returned because the consumer was killed.
    pub returned: u64,
    /// The messages that are queued now, or delivered to a consumer and not settled.
    pub waiting: usize,
}

/// A message that was delivered to a consumer and is not settled.
pub struct Delivery {
    pub message: Arc<Message>,
    /// The faults of this delivery.
    pub fate: Fate,
    publication: u32,
    copy: u8,
    delivery: u16,
}

struct Queued {
    due: u64,
    order: u64,
    message: Arc<Message>,
    publication: u32,
    copy: u8,
    delivery: u16,
}

impl Transport {
    /// Creates an empty transport. With `awaits_relay`, consumers wait for more messages until
    /// [`Transport::relay_is_done`].
    #[must_use]
    pub fn new(fates: Fates, awaits_relay: bool) -> Self {
        Self {
            fates,
            state: Mutex::new(State {
                awaits_relay,
                ..State::default()
            }),
            changed: Notify::new(),
        }
    }

    /// Sends commands, with one [`STEP`] of virtual time between them.
    pub fn send_all(&self, commands: &[Message]) {
        let mut state = self.state();
        for (step, command) in (0_u64..).zip(commands) {
            self.enqueue(&mut state, step * STEP, command.clone());
        }
    }

    /// Publishes a message now.
    pub fn publish(&self, message: Message) {
        let mut state = self.state();
        let now = state.now;
        self.enqueue(&mut state, now, message);
        drop(state);
        self.changed.notify_waiters();
    }

    fn enqueue(&self, state: &mut State, sent: u64, message: Message) {
        let nth = state
            .publications
            .entry((message.kind, message.subject))
            .or_default();
        *nth += 1;
        let publication = *nth;
        let message = Arc::new(message);
        for (copy, late) in (0_u8..).zip(self.fates.copies(&message, publication)) {
            state.push(Queued {
                due: sent + late,
                order: 0,
                message: Arc::clone(&message),
                publication,
                copy,
                delivery: 1,
            });
        }
    }

    /// Waits for the next delivery and returns it. Returns `None` when the transport is drained or
    /// paused.
    pub async fn next(&self) -> Option<Delivery> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Register first, so that a change between the check and the wait is not missed.
            changed.as_mut().enable();
            {
                let mut state = self.state();
                if state.is_paused() {
                    return None;
                }
                if let Some(Reverse(next)) = state.queue.pop() {
                    return Some(self.deliver(&mut state, next));
                }
                if state.is_over() {
                    return None;
                }
            }
            changed.await;
        }
    }

    fn deliver(&self, state: &mut State, next: Queued) -> Delivery {
        state.now = state.now.max(next.due);
        state.in_flight += 1;
        state.counts.deliveries += 1;
        if !state.delivered.insert((next.message.kind, next.message.id)) {
            state.counts.duplicates += 1;
        }
        Delivery {
            fate: self
                .fates
                .delivery(&next.message, next.publication, next.copy, next.delivery),
            message: next.message,
            publication: next.publication,
            copy: next.copy,
            delivery: next.delivery,
        }
    }

    /// Acknowledges a delivery. If its fate is a lost acknowledgement, the message is redelivered.
    pub fn acknowledge(&self, delivery: Delivery) {
        let mut state = self.state();
        state.in_flight -= 1;
        if delivery.fate.ack_lost {
            state.counts.lost_acks += 1;
            state.push_again(delivery);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Returns the delivery of a killed consumer to the queue. The message is redelivered.
    pub fn give_back(&self, delivery: Delivery) {
        let mut state = self.state();
        state.in_flight -= 1;
        state.counts.returned += 1;
        state.push_again(delivery);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Sets the total number of deliveries after which the transport pauses. With `None` it does
    /// not pause.
    pub fn pause_at(&self, deliveries: Option<u64>) {
        self.state().pause_at = deliveries;
    }

    /// Returns whether the queue is empty and no delivery is in progress. Then only the relay can
    /// publish another message.
    pub fn is_quiet(&self) -> bool {
        let state = self.state();
        state.queue.is_empty() && state.in_flight == 0
    }

    /// Returns whether the transport is paused and no delivery is in progress.
    pub fn has_paused(&self) -> bool {
        let state = self.state();
        state.is_paused() && state.in_flight == 0
    }

    /// Declares that the relay will not publish another message. The consumers end when the queue
    /// is empty.
    pub fn relay_is_done(&self) {
        self.state().awaits_relay = false;
        self.changed.notify_waiters();
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> Counts {
        let state = self.state();
        Counts {
            waiting: state.queue.len() + state.in_flight,
            ..state.counts
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn push(&mut self, mut queued: Queued) {
        self.order += 1;
        queued.order = self.order;
        self.queue.push(Reverse(queued));
    }

    fn push_again(&mut self, delivery: Delivery) {
        self.push(Queued {
            due: self.now + delivery.fate.again_after,
            order: 0,
            message: delivery.message,
            publication: delivery.publication,
            copy: delivery.copy,
            delivery: delivery.delivery.saturating_add(1),
        });
    }

    fn is_paused(&self) -> bool {
        self.pause_at
            .is_some_and(|limit| self.counts.deliveries >= limit)
    }

    fn is_over(&self) -> bool {
        self.queue.is_empty() && self.in_flight == 0 && !self.awaits_relay
    }
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        (self.due, self.order) == (other.due, other.order)
    }
}

impl Eq for Queued {}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Queued {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.order).cmp(&(other.due, other.order))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range::{Config, Rates, traffic::Traffic};

    fn transport(rates: Rates) -> (Transport, usize) {
        let config = Config {
            shots: 300,
            ..Config::new("")
        };
        let traffic = Traffic::generate(&config).unwrap();
        let transport = Transport::new(Fates::new(config.seed, rates), false);
        transport.send_all(&traffic.commands);
        (transport, traffic.commands.len())
    }

    async fn drain(transport: &Transport) -> Vec<Uuid> {
        let mut seen = Vec::new();
        while let Some(delivery) = transport.next().await {
            seen.push(delivery.message.id);
            if delivery.fate.kill.is_some() {
                transport.give_back(delivery);
            } else {
                transport.acknowledge(delivery);
            }
        }
        seen
    }

    /// Without faults there are no duplicates, lost acknowledgements or returned deliveries.
    #[tokio::test]
    async fn without_faults_each_message_is_delivered_once() {
        let (transport, sent) = transport(Rates {
            duplicates: 0.0,
            reorder: 0.0,
            delay: 0.0,
            ack_loss: 0.0,
            kill: 0.0,
        });
        assert_eq!(drain(&transport).await.len(), sent);
        let counts = transport.counts();
        assert_eq!(
            (counts.duplicates, counts.lost_acks, counts.returned),
            (0, 0, 0)
        );
    }

    /// With the highest rates no message is lost, and the run ends.
    #[tokio::test]
    async fn with_faults_each_message_is_delivered_at_least_once() {
        let (transport, sent) = transport(Rates {
            duplicates: 1.0,
            reorder: 1.0,
            delay: 1.0,
            ack_loss: 1.0,
            kill: 0.5,
        });
        let seen = drain(&transport).await;
        let distinct: HashSet<_> = seen.iter().collect();
        assert_eq!(distinct.len(), sent);
        let counts = transport.counts();
        assert_eq!(counts.duplicates, (seen.len() - sent) as u64);
        assert!(counts.lost_acks > 0 && counts.returned > 0);
    }

    /// The same seed gives the same order of deliveries.
    #[tokio::test]
    async fn seed_determines_the_faults() {
        let rates = Config::new("").rates;
        let (first, _) = transport(rates.clone());
        let (second, _) = transport(rates);
        assert_eq!(drain(&first).await, drain(&second).await);
    }
}
