//! Released messages that stay unacknowledged.
//!
//! A quorum queue before RabbitMQ 4.3 counts each return of a message, and deletes the message at
//! its delivery limit. So a message that did not fail is not returned: the source delivers it
//! again itself. Nothing of this outlives the channel: when that closes, the broker delivers all
//! unacknowledged messages again, and counts them.

use std::{
    future::pending,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::receipt::RabbitMqReceipt;
use crate::Message;

/// The withheld messages of one session.
#[derive(Default)]
pub(super) struct Withheld {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    waiting: Vec<Waiting>,
    /// The source fetches nothing more from this session.
    is_closed: bool,
}

struct Waiting {
    /// When the source delivers the message again.
    due: Instant,
    /// When the message returns to its queue: the broker closes the channel of a message that is
    /// unacknowledged for too long.
    until: Instant,
    message: Message,
    receipt: RabbitMqReceipt,
}

impl Withheld {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Withholds a message until it is due, but not longer than `until`. Returns the receipt when
    /// nothing would deliver the message again.
    pub(super) fn add(
        &self,
        message: Message,
        receipt: RabbitMqReceipt,
        due: Instant,
        until: Instant,
    ) -> Result<(), RabbitMqReceipt> {
        let mut state = self.state();
        if state.is_closed || until <= Instant::now() {
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
    pub(super) async fn next(&self) -> (Message, RabbitMqReceipt) {
        loop {
            let changed = self.changed.notified();
            let first_due = {
                let mut state = self.state();
                // The broker delivers the messages of a closed channel again.
                state.waiting.retain(|waiting| waiting.receipt.is_usable());
                let now = Instant::now();
                if let Some(at) = state.waiting.iter().position(|waiting| waiting.due <= now) {
                    let Waiting { message, receipt, .. } = state.waiting.remove(at);
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

    /// Returns messages to their queue when their time is over, also while nothing is fetched. Ends
    /// when this is closed.
    pub(super) async fn expire(self: Arc<Self>) {
        loop {
            let changed = self.changed.notified();
            let (expired, next) = {
                let mut state = self.state();
                if state.is_closed {
                    return;
                }
                let now = Instant::now();
                let expired: Vec<Waiting> = state.waiting.extract_if(.., |waiting| waiting.until <= now).collect();
                (expired, state.waiting.iter().map(|waiting| waiting.until).min())
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

    /// Nothing is withheld from now on. Returns the receipts of the messages that were: a dropped
    /// receipt returns its message.
    pub(super) fn close(&self) -> Vec<RabbitMqReceipt> {
        let mut state = self.state();
        state.is_closed = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.changed.notify_waiters();
        waiting.into_iter().map(|waiting| waiting.receipt).collect()
    }
}

/// Sleeps until this moment; for ever when there is none.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => pending().await,
    }
}
