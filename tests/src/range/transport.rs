//! An at-least-once transport: it duplicates, reorders, delays, and forgets acknowledgements, but
//! loses nothing.
//!
//! Time is virtual: a message is due at a point of it, the next delivery is whatever is due first,
//! and the clock jumps there. So delays change the order and cost no waiting.

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

/// The queue between everybody.
pub struct Transport {
    fates: Fates,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    now: u64,
    queue: BinaryHeap<Reverse<Queued>>,
    /// Breaks ties of `due`, so that the heap is fair.
    order: u64,
    in_flight: usize,
    publications: HashMap<(Kind, Uuid), u32>,
    delivered: HashSet<(Kind, Uuid)>,
    counts: Counts,
    /// Deliveries after which to pause.
    pause_at: Option<u64>,
    /// Somebody outside, the relay, may still publish.
    awaits_relay: bool,
}

/// What the transport has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Every time that a consumer was given a message.
    pub deliveries: u64,
    /// Those of a message that was given before.
    pub duplicates: u64,
    /// Acknowledgements that nobody heard.
    pub lost_acks: u64,
    /// Deliveries that came back because the consumer died.
    pub returned: u64,
    /// What waits, at this moment.
    pub waiting: usize,
}

/// A message in the hands of a consumer.
pub struct Delivery {
    /// What to handle.
    pub message: Arc<Message>,
    /// What befalls it.
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
    /// An empty transport. With `awaits_relay` it is not over before [`Transport::relay_is_done`].
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

    /// Sends commands, one step apart.
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

    /// The next delivery; waits for one. `None` when all is done or it is time to pause.
    pub async fn next(&self) -> Option<Delivery> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Listen first: what changes between the look and the wait must not be missed.
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

    /// The consumer is done with it. Should the acknowledgement get lost, it comes again.
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

    /// The consumer died over it: it comes again.
    pub fn give_back(&self, delivery: Delivery) {
        let mut state = self.state();
        state.in_flight -= 1;
        state.counts.returned += 1;
        state.push_again(delivery);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Stops handing out messages after so many deliveries in all; `None` goes on to the end.
    pub fn pause_at(&self, deliveries: Option<u64>) {
        self.state().pause_at = deliveries;
    }

    /// Whether nothing waits and nobody works: only a relay could bring something now.
    pub fn is_quiet(&self) -> bool {
        let state = self.state();
        state.queue.is_empty() && state.in_flight == 0
    }

    /// Whether a pause has come and everybody has put down what they had.
    pub fn has_paused(&self) -> bool {
        let state = self.state();
        state.is_paused() && state.in_flight == 0
    }

    /// The relay has nothing more: consumers may go home.
    pub fn relay_is_done(&self) {
        self.state().awaits_relay = false;
        self.changed.notify_waiters();
    }

    /// What was done so far.
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

    #[tokio::test]
    async fn without_faults_everything_comes_once_and_in_order() {
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

    #[tokio::test]
    async fn with_faults_everything_comes_at_least_once_and_the_run_ends() {
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

    #[tokio::test]
    async fn the_same_seed_gives_the_same_faults() {
        let rates = Config::new("").rates;
        let (first, _) = transport(rates.clone());
        let (second, _) = transport(rates);
        assert_eq!(drain(&first).await, drain(&second).await);
    }

    #[tokio::test]
    async fn a_pause_keeps_the_rest() {
        let (transport, sent) = transport(Config::new("").rates);
        transport.pause_at(Some(100));
        let before = drain(&transport).await;
        assert_eq!(before.len(), 100);
        assert!(transport.has_paused());
        transport.pause_at(None);
        let mut all = before;
        all.extend(drain(&transport).await);
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), sent);
    }
}
