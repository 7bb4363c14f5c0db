//! Released messages that stay unacknowledged.
//!
//! A quorum queue before RabbitMQ 4.3 counts each return of a message and deletes the message at
//! its delivery limit, and a durable consumer of NATS with `max_deliver` stops delivering it. So a
//! message that did not fail is not returned: the source delivers it again itself. When the
//! connection of a delivery ends, the broker delivers the message again and counts that.

use std::{
    future::pending,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use crate::Message;

/// A receipt whose message can be withheld.
pub(super) trait Withhold: Send + 'static {
    /// Whether the broker certainly delivers the message again, because it no longer waits for a
    /// settlement. Then the message is not withheld any more.
    fn comes_by_itself(&self) -> bool;

    /// Returns the message to its broker. Returns whether the broker has it back.
    fn give_back(self) -> impl Future<Output = bool> + Send;
}

/// The withheld messages of one source.
pub(super) struct Withheld<R> {
    state: Mutex<State<R>>,
    changed: Notify,
}

struct State<R> {
    waiting: Vec<Waiting<R>>,
    /// The source has ended.
    is_closed: bool,
}

struct Waiting<R> {
    /// When the source delivers the message again.
    due: Instant,
    /// When the message returns to its broker; none when it is not returned before the source ends.
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

    /// Whether messages can be withheld.
    pub(super) fn is_open(&self) -> bool {
        !self.state().is_closed
    }

    /// Withholds a message until it is due, but not longer than `until`. Returns the receipt when
    /// nothing would deliver the message again.
    pub(super) fn add(
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

    /// Waits for a message that is due. Cancel safe.
    pub(super) async fn next(&self) -> (Message, R) {
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
                () = at(first_due) => {}
            }
        }
    }

    /// Returns messages to their broker when their time is over, also while nothing is fetched.
    /// Ends when this is closed.
    #[cfg_attr(
        not(feature = "rabbitmq"),
        expect(dead_code, reason = "a source of NATS withholds without end")
    )]
    pub(super) async fn expire(self: Arc<Self>) {
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
                () = at(next) => {}
            }
        }
    }

    /// How many messages are withheld.
    #[cfg(feature = "nats")]
    pub(super) fn len(&self) -> usize {
        self.state().waiting.len()
    }

    /// Nothing is withheld from now on. Returns the messages that were: dropping a receipt returns
    /// its message.
    pub(super) fn close(&self) -> Vec<(Message, R)> {
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

/// Sleeps until this moment; for ever when there is none.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => pending().await,
    }
}
