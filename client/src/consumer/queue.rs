//! The messages that a consumer holds and that nobody works on: waiting for another one of their key, or for their turn to be
//! tried again.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use crate::{Delivery, Message, Receipt, Settlement};

/// A message that the broker waits to hear about.
pub(super) struct Held {
    pub(super) message: Message,
    pub(super) receipt: Box<dyn Receipt>,
    /// Messages of one sequence are worked on one after the other.
    pub(super) sequence: Option<String>,
    /// How often it was tried again in place.
    pub(super) repeats: u32,
    due: Option<Instant>,
    pub(super) permit: OwnedSemaphorePermit,
}

impl Held {
    pub(super) fn new(delivery: Delivery, is_ordered: bool, permit: OwnedSemaphorePermit) -> Self {
        let (message, receipt) = delivery.into_parts();
        let is_ordered_here = is_ordered && !receipt.is_in_charge();
        let sequence = message.key().filter(|_| is_ordered_here).map(str::to_owned);
        Self {
            message,
            receipt,
            sequence,
            repeats: 0,
            due: None,
            permit,
        }
    }

    /// The settlement of a message that this process gives back. A message that was tried again in
    /// place has failed, and its broker does not know that yet.
    pub(super) fn given_back(&self) -> Settlement {
        if self.repeats > 0 {
            Settlement::RETRY
        } else {
            Settlement::RELEASE
        }
    }
}

/// Hands out messages in the order of their delivery, of one sequence only one at a time.
#[derive(Default)]
pub(super) struct Queue(Mutex<State>);

#[derive(Default)]
struct State {
    waiting: VecDeque<Held>,
    /// These failed and keep their sequence to themselves until it is their turn again.
    delayed: Vec<Held>,
    /// The sequences that somebody works on, or that a delayed message blocks.
    busy: HashSet<String>,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        // No change of the state can panic half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, held: Held) {
        self.state().waiting.push_back(held);
    }

    /// The next message that can be worked on now; its sequence is busy until it is [released](Self::release).
    pub(super) fn take(&self) -> Option<Held> {
        let mut state = self.state();
        let now = Instant::now();
        if let Some(at) = state.delayed.iter().position(|held| held.due.is_none_or(|due| due <= now)) {
            return Some(state.delayed.swap_remove(at));
        }
        let State { waiting, busy, .. } = &mut *state;
        let at = waiting
            .iter()
            .position(|held| held.sequence.as_ref().is_none_or(|sequence| !busy.contains(sequence)))?;
        let held = waiting.remove(at)?;
        busy.extend(held.sequence.clone());
        Some(held)
    }

    /// Keeps a message that was taken, and its sequence, until it is due.
    pub(super) fn delay(&self, mut held: Held, due: Instant) {
        held.due = Some(due);
        self.state().delayed.push(held);
    }

    /// The sequence goes on with its next message.
    pub(super) fn release(&self, sequence: &str) {
        self.state().busy.remove(sequence);
    }

    /// When a delayed message can be taken.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.state().delayed.iter().filter_map(|held| held.due).min()
    }

    /// How many nobody works on.
    pub(super) fn len(&self) -> usize {
        let state = self.state();
        state.delayed.len() + state.waiting.len()
    }

    /// All that is left, in an order in which it can be delivered again.
    pub(super) fn drain(&self) -> Vec<Held> {
        let mut state = self.state();
        let State { waiting, delayed, .. } = &mut *state;
        delayed.drain(..).chain(waiting.drain(..)).collect()
    }
}
