//! The messages that were fetched ahead.
//!
//! Each receipt holds its session, and the session holds these messages.
//! [`close`](Prefetched::close) ends that cycle, so every source that ends calls it.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

use super::receipt::NatsReceipt;
use crate::{Message, TransportError};

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
    /// The source has ended.
    is_closed: bool,
}

impl Prefetched {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a message. One that comes after the close is returned, because its receipt is dropped.
    pub(super) fn add(&self, message: Message, receipt: NatsReceipt) {
        let mut state = self.state();
        if state.is_closed {
            return;
        }
        state.waiting.push_back((message, receipt));
        drop(state);
        self.came.notify_waiters();
    }

    /// The task that fetches has failed. The source starts another one after it has returned this
    /// error.
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
                    // Skips a delivery that NATS has repeated meanwhile: the later one waits
                    // behind.
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

    /// Takes no more messages. Returns those that wait.
    pub(super) fn close(&self) -> Vec<NatsReceipt> {
        let mut state = self.state();
        state.is_closed = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().map(|(_, receipt)| receipt).collect()
    }
}
