//! The messages that a consumer holds and that no worker processes: they wait for an earlier
//! message of their key, for free bytes, or for their next attempt.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use super::budget::{Budget, Share};
use crate::{Delivery, Message, Receipt, Settlement, lease::NotedLease};

/// A message that is not settled yet.
pub(super) struct QueuedMessage {
    pub(super) message: Message,
    pub(super) receipt: Box<dyn Receipt>,
    /// The ordering key of the message, if the consumer keeps the order. Messages with the same
    /// value are processed one after the other.
    pub(super) ordering_key: Option<String>,
    /// How often the message was retried in place.
    pub(super) repeats: u32,
    due: Option<Instant>,
    size: usize,
    pub(super) permit: Permit,
}

/// The share of the consumer's limits that a message takes until it is settled.
pub(super) struct Permit {
    _message: OwnedSemaphorePermit,
    /// `None` while the fetched message waits for its bytes.
    bytes: Option<Share>,
}

impl QueuedMessage {
    pub(super) fn new(delivery: Delivery, is_ordered: bool, permit: OwnedSemaphorePermit) -> Self {
        let (message, receipt) = delivery.into_parts();
        let is_ordered_here = is_ordered && !receipt.is_in_charge();
        let ordering_key = message.key().filter(|_| is_ordered_here).map(str::to_owned);
        Self {
            size: message.size(),
            message,
            receipt,
            ordering_key,
            repeats: 0,
            due: None,
            permit: Permit {
                _message: permit,
                bytes: None,
            },
        }
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    fn with(mut self, bytes: Share) -> Self {
        self.permit.bytes = Some(bytes);
        self
    }

    /// Returns whether a release uses up one of the last deliveries of the message.
    pub(super) fn costs_delivery_near_limit(&self) -> bool {
        let near_limit = self.receipt.near_limit();
        near_limit.is_some_and(|near_limit| !near_limit.is_safe_to_release)
    }

    /// Returns whether the broker may delete the message when the message is released.
    pub(super) fn may_end_with_release(&self) -> bool {
        let near_limit = self.receipt.near_limit();
        near_limit
            .is_some_and(|near_limit| !near_limit.is_safe_to_release && !near_limit.is_withheld)
    }

    /// Returns whether a consumer that stops must keep the message: its broker may delete it at its
    /// return, or its source hands it over at its close, without the token of its lease. A message
    /// near its limit whose lease expires later is kept too: its next delivery would be wasted.
    pub(super) fn must_be_kept_at_stop(&self) -> bool {
        let blocks_next_delivery = self.message.noted_lease().is_some_and(NotedLease::expires);
        self.may_end_with_release()
            || self.receipt.near_limit().is_some_and(|near_limit| {
                blocks_next_delivery || self.is_leased() && near_limit.is_handed_over_at_close
            })
    }

    /// Returns whether an attempt was interrupted and its lease has not ended yet.
    pub(super) fn is_leased(&self) -> bool {
        self.message.noted_lease().is_some_and(NotedLease::is_set)
    }

    /// Returns the settlement of a message that this process releases when it stops. A message that
    /// was retried in place has failed, so its broker must count a failure. A message near its
    /// delivery limit is released without a failure, because its broker might delete it after a
    /// failure. At a release, its source withholds it or its broker does not count the return.
    pub(super) fn given_back(&self) -> Settlement {
        if self.repeats > 0 && self.receipt.near_limit().is_none() {
            Settlement::RETRY
        } else {
            Settlement::RELEASE
        }
    }
}

/// A queue that returns messages in the order of delivery, and at most one message of each ordering
/// key at a time.
pub(super) struct Queue {
    state: Mutex<State>,
    budget: Budget,
}

/// The next message for a batch with a limited number of free bytes.
pub(super) enum Next {
    Message(QueuedMessage),
    /// The next message is larger than the free bytes of the batch.
    TooLarge,
    Nothing,
}

#[derive(Default)]
struct State {
    /// A fetched message that waits for its bytes. Nothing more is fetched in the meantime.
    ahead: Option<QueuedMessage>,
    waiting: VecDeque<QueuedMessage>,
    /// Messages that wait for their next attempt. No later message of an ordering key is processed
    /// before this attempt has ended.
    delayed: Vec<QueuedMessage>,
    /// The ordering keys with a message that is being processed or delayed.
    busy: HashSet<String>,
}

impl State {
    fn len(&self) -> usize {
        self.delayed.len() + self.waiting.len() + usize::from(self.ahead.is_some())
    }
}

impl Queue {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            state: Mutex::default(),
            budget: Budget::new(max_bytes),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state of a poisoned lock is valid, because no change of the state can panic halfway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, queued: QueuedMessage) {
        let share = self.budget.try_take(queued.size);
        let mut state = self.state();
        match share {
            Some(share) => state.waiting.push_back(queued.with(share)),
            None => state.ahead = Some(queued),
        }
    }

    // The message that waits for its bytes

    pub(super) fn has_ahead(&self) -> bool {
        self.state().ahead.is_some()
    }

    /// Waits until the fetched message has its bytes and admits it. Cancel safe.
    pub(super) async fn bytes_for_ahead(&self) {
        let Some(size) = self.state().ahead.as_ref().map(QueuedMessage::size) else {
            return;
        };
        if let Some(share) = self.budget.take(size).await {
            self.admit(share);
        }
    }

    /// Admits the fetched message without all its bytes when messages are delayed and no worker has
    /// a message. Without this, a failure of the environment might never count as a failure of a
    /// delayed message, because that requires a success of another message. `held_count` is the
    /// number of messages in the queue and with workers; the consumer's permits limit it.
    pub(super) fn admit_beside_delayed(&self, held_count: usize) -> bool {
        let size = {
            let state = self.state();
            let is_all_here = state.len() == held_count;
            match &state.ahead {
                Some(ahead) if is_all_here && !state.delayed.is_empty() => ahead.size,
                _ => return false,
            }
        };
        let share = self.budget.take_free(size);
        share.is_some_and(|share| self.admit(share))
    }

    fn admit(&self, share: Share) -> bool {
        let mut state = self.state();
        let ahead = state.ahead.take().map(|queued| queued.with(share));
        let is_admitted = ahead.is_some();
        state.waiting.extend(ahead);
        is_admitted
    }

    // The messages that can be worked on

    /// Returns the next message that can be processed now, if it has at most `bytes` bytes. The
    /// ordering key of this message is busy until [`free_key`](Self::free_key). Smaller messages do
    /// not overtake a message that is too large.
    pub(super) fn take_within(&self, bytes: usize) -> Next {
        let mut state = self.state();
        let now = Instant::now();
        if let Some(at) = state
            .delayed
            .iter()
            .position(|queued| queued.due.is_none_or(|due| due <= now))
        {
            return match state.delayed[at].size > bytes {
                true => Next::TooLarge,
                false => Next::Message(state.delayed.swap_remove(at)),
            };
        }
        let State { waiting, busy, .. } = &mut *state;
        let is_free = |queued: &QueuedMessage| {
            queued
                .ordering_key
                .as_ref()
                .is_none_or(|ordering_key| !busy.contains(ordering_key))
        };
        let Some(at) = waiting.iter().position(is_free) else {
            return Next::Nothing;
        };
        if waiting[at].size > bytes {
            return Next::TooLarge;
        }
        let Some(queued) = waiting.remove(at) else {
            return Next::Nothing;
        };
        busy.extend(queued.ordering_key.clone());
        Next::Message(queued)
    }

    /// Removes and returns the next message that can be released and that no worker has begun to
    /// process. The message may still be waiting for its bytes.
    pub(super) fn take_unbegun(&self) -> Option<QueuedMessage> {
        match self.take_within(usize::MAX) {
            Next::Message(queued) => Some(queued),
            // A fetched message with an ordering key stays, because the key may be busy.
            Next::TooLarge | Next::Nothing => {
                let mut state = self.state();
                // A message that its broker may delete when it is released also stays. The consumer
                // would delay it here and not release it, and its bytes would not be counted.
                state.ahead.take_if(|queued| {
                    queued.ordering_key.is_none() && !queued.may_end_with_release()
                })
            }
        }
    }

    /// Stores a message that a worker has taken, until its next attempt at `due`. Its ordering key
    /// stays busy.
    pub(super) fn delay(&self, mut queued: QueuedMessage, due: Instant) {
        queued.due = Some(due);
        self.state().delayed.push(queued);
    }

    /// Makes the next message of this ordering key available.
    pub(super) fn free_key(&self, ordering_key: &str) {
        self.state().busy.remove(ordering_key);
    }

    /// Returns when the next delayed message is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.state()
            .delayed
            .iter()
            .filter_map(|queued| queued.due)
            .min()
    }

    /// Returns the number of messages in the queue. No worker processes these messages.
    pub(super) fn len(&self) -> usize {
        self.state().len()
    }

    /// Removes and returns all messages. Messages of one ordering key are in the order of delivery.
    pub(super) fn drain(&self) -> Vec<QueuedMessage> {
        let mut state = self.state();
        let State {
            waiting,
            delayed,
            ahead,
            ..
        } = &mut *state;
        delayed
            .drain(..)
            .chain(waiting.drain(..))
            .chain(ahead.take())
            .collect()
    }
}
