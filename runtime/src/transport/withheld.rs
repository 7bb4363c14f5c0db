//! Withholds released messages: they stay unacknowledged, and their source redelivers them itself.
//!
//! A quorum queue before RabbitMQ 4.3 counts each return of a message and deletes the message at
//! its delivery limit. A durable consumer of NATS with `max_deliver` also counts returns, and NATS
//! stops delivering the message at the limit. So a message that did not fail is not returned to its
//! broker: the source withholds it and redelivers it itself. When the connection of a delivery
//! ends, the broker redelivers the message and counts that delivery.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::{sync::Notify, time::Instant};

use super::wait_until;
use crate::Message;

/// A receipt of a message that can be withheld.
pub trait Withhold: Send + 'static {
    /// Returns whether the broker certainly redelivers the message, because the broker no longer
    /// waits for a settlement. Such a message is no longer withheld.
    fn comes_by_itself(&self) -> bool;

    /// Returns the message to its broker. The result is true if the return succeeded.
    fn give_back(self) -> impl Future<Output = bool> + Send;
}

/// The withheld messages of one source.
pub struct Withheld<R> {
    state: Mutex<State<R>>,
    changed: Notify,
}

struct State<R> {
    waiting: Vec<Waiting<R>>,
    /// Whether the source has ended.
    is_closed: bool,
}

struct Waiting<R> {
    /// The time at which the source redelivers the message.
    due: Instant,
    /// The time at which the message is returned to its broker. `None` means that it is returned
    /// only when the source ends.
    until: Option<Instant>,
    message: Message,
    receipt: R,
}

impl<R> Default for Withheld<R> {
    fn default() -> Self {
        let state = State {
            waiting: Vec::new(),
            is_closed: false,
        };
        Self {
            state: Mutex::new(state),
            changed: Notify::new(),
        }
    }
}

impl<R: Withhold> Withheld<R> {
    fn state(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether messages can be withheld. They can be withheld until the source is closed.
    pub fn is_open(&self) -> bool {
        !self.state().is_closed
    }

    /// Withholds a message until `due`, but not longer than `until`. Returns the receipt as the
    /// error when the message cannot be withheld: after the close, or when `until` has passed.
    pub fn add(
        &self,
        message: Message,
        receipt: R,
        due: Instant,
        until: Option<Instant>,
    ) -> Result<(), R> {
        let mut state = self.state();
        if state.is_closed || until.is_some_and(|until| until <= Instant::now()) {
            return Err(receipt);
        }
        state.waiting.push(Waiting {
            due,
            until,
            message,
            receipt,
        });
        drop(state);
        self.changed.notify_waiters();
        Ok(())
    }

    /// Waits for a message that is due, and returns it. Cancel safe.
    pub async fn next(&self) -> (Message, R) {
        loop {
            let changed = self.changed.notified();
            let first_due = {
                let mut state = self.state();
                state
                    .waiting
                    .retain(|waiting| !waiting.receipt.comes_by_itself());
                let now = Instant::now();
                if let Some(at) = state.waiting.iter().position(|waiting| waiting.due <= now) {
                    let Waiting {
                        message, receipt, ..
                    } = state.waiting.remove(at);
                    return (message, receipt);
                }
                state.waiting.iter().map(|waiting| waiting.due).min()
            };
            tokio::select! {
                () = changed => {}
                () = wait_until(first_due) => {}
            }
        }
    }

    /// Returns messages to their broker when their `until` has passed, also while no caller waits
    /// in [`next`](Self::next). Returns after the [`close`](Self::close).
    pub async fn expire(self: Arc<Self>) {
        loop {
            let changed = self.changed.notified();
            let (expired, next) = {
                let mut state = self.state();
                if state.is_closed {
                    return;
                }
                let now = Instant::now();
                let is_expired =
                    |waiting: &mut Waiting<R>| waiting.until.is_some_and(|until| until <= now);
                let expired: Vec<_> = state.waiting.extract_if(.., is_expired).collect();
                (
                    expired,
                    state
                        .waiting
                        .iter()
                        .filter_map(|waiting| waiting.until)
                        .min(),
                )
            };
            for Waiting { receipt, .. } in expired {
                receipt.give_back().await;
            }
            tokio::select! {
                () = changed => {}
                () = wait_until(next) => {}
            }
        }
    }

    /// Returns the number of withheld messages.
    pub fn count(&self) -> usize {
        self.state().waiting.len()
    }

    /// Stops withholding messages, and returns the withheld messages. Dropping the receipt of a
    /// message returns the message to its broker.
    pub fn close(&self) -> Vec<(Message, R)> {
        let mut state = self.state();
        state.is_closed = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.changed.notify_waiters();
        waiting
            .into_iter()
            .map(|waiting| (waiting.message, waiting.receipt))
            .collect()
    }
}
