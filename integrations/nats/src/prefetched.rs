//! The messages that are fetched ahead and not yet delivered to the consumer.
//!
//! [`close`](Prefetched::close) is called at the end of every source and returns the receipts. A
//! receipt that is dropped returns its message to the server. So a message that arrives after the
//! close is also returned to the server.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use idem_runtime::{Message, transport::TransportError};
use tokio::sync::Notify;

use super::receipt::NatsReceipt;

#[derive(Default)]
pub(super) struct Prefetched {
    state: Mutex<State>,
    came: Notify,
    taken: Notify,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(Message, NatsReceipt)>,
    /// The error that ended the task that fetches.
    ended: Option<TransportError>,
    /// Whether the source has ended.
    is_closed: bool,
}

impl Prefetched {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a message. After the close, the receipt is dropped instead, which returns the message
    /// to the server.
    pub(super) fn add(&self, message: Message, receipt: NatsReceipt) {
        let mut state = self.state();
        if state.is_closed {
            return;
        }
        state.waiting.push_back((message, receipt));
        drop(state);
        self.came.notify_waiters();
    }

    /// Records the error with which the task that fetches failed. The source starts another task
    /// after it has returned this error.
    pub(super) fn end(&self, why: TransportError) {
        self.state().ended = Some(why);
        self.came.notify_waiters();
    }

    /// Waits for the next message, or for the error that follows the last message. Cancel safe.
    pub(super) async fn next(&self) -> Result<(Message, NatsReceipt), TransportError> {
        loop {
            let came = self.came.notified();
            {
                let mut state = self.state();
                while let Some((message, receipt)) = state.waiting.pop_front() {
                    // Skip a delivery if NATS has redelivered its message, because the later
                    // delivery follows.
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

    /// Returns the number of waiting messages.
    pub(super) fn len(&self) -> usize {
        self.state().waiting.len()
    }

    /// Signals that there may be room for more messages.
    pub(super) fn make_room(&self) {
        self.taken.notify_one();
    }

    /// Waits until there may be room for more messages.
    pub(super) async fn room(&self) {
        self.taken.notified().await;
    }

    /// Stops accepting messages. Returns the receipts of the waiting messages.
    pub(super) fn close(&self) -> Vec<NatsReceipt> {
        let mut state = self.state();
        state.is_closed = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().map(|(_, receipt)| receipt).collect()
    }
}
