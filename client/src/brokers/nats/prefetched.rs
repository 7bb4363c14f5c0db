//! The messages that were fetched ahead.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

use super::receipt::NatsReceipt;
use crate::{Message, TransportError, brokers::withheld::Withhold};

#[derive(Default)]
pub(super) struct Prefetched {
    state: Mutex<State>,
    came: Notify,
    taken: Notify,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(Message, NatsReceipt)>,
    /// Why nothing more is fetched.
    ended: Option<TransportError>,
}

impl Prefetched {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, message: Message, receipt: NatsReceipt) {
        self.state().waiting.push_back((message, receipt));
        self.came.notify_waiters();
    }

    /// Nothing more is fetched until that is begun anew.
    pub(super) fn end(&self, why: TransportError) {
        self.state().ended = Some(why);
        self.came.notify_waiters();
    }

    /// Waits for the next message, or for the error after the last one. Cancel safe.
    pub(super) async fn next(&self) -> Result<(Message, NatsReceipt), TransportError> {
        loop {
            let came = self.came.notified();
            {
                let mut state = self.state();
                while let Some((message, receipt)) = state.waiting.pop_front() {
                    // Otherwise the message has come again, and waits behind.
                    if receipt.is_usable() {
                        return Ok((message, receipt));
                    }
                }
                if let Some(error) = state.ended.take() {
                    return Err(error);
                }
            }
            came.await;
        }
    }

    /// How many messages wait.
    pub(super) fn len(&self) -> usize {
        self.state().waiting.len()
    }

    /// There may be room for more.
    pub(super) fn make_room(&self) {
        self.taken.notify_one();
    }

    /// Waits until there may be room.
    pub(super) async fn room(&self) {
        self.taken.notified().await;
    }

    /// All that wait.
    pub(super) fn drain(&self) -> Vec<NatsReceipt> {
        let waiting = std::mem::take(&mut self.state().waiting);
        waiting.into_iter().map(|(_, receipt)| receipt).collect()
    }
}
