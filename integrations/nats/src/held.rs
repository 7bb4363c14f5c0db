//! The deliveries that this process holds, from their arrival until they are settled.
//!
//! The server redelivers a message when it receives no report of it within the time for the
//! settlement. While a message waits in this process, for any reason and for any time, one task
//! reports progress to the server. So waiting causes no redelivery, which the server would count.
//!
//! The time is not limited: a handler that hangs keeps its message as long as its process lives, as
//! with RabbitMQ.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use async_nats::{Client, Subject, connection::State as Connection, jetstream::AckKind};
use futures_util::FutureExt;
use idem_runtime::transport::wait_until;
use tokio::{select, sync::Notify, task::unconstrained, time::Instant};

/// The delay before progress is reported again when there is no connection or the client library
/// accepts no more messages.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

pub(super) struct Held {
    client: Client,
    state: Mutex<State>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct State {
    /// The deliveries, by the place of their message in the stream. A redelivery replaces the
    /// earlier delivery of its message.
    deliveries: HashMap<i64, Delivery>,
    /// The time at which the task next reports progress.
    next_report: Option<Instant>,
}

impl State {
    fn has(&self, place: i64, reply: &Subject) -> bool {
        let held = self.deliveries.get(&place);
        held.is_some_and(|held| held.reply == *reply)
    }
}

struct Delivery {
    /// The subject for the settlement, which is unique to this delivery.
    reply: Subject,
    /// The interval between two reports of progress.
    every: Duration,
    /// The time of the next report of progress.
    due: Instant,
}

impl Held {
    /// Starts the task that reports progress, and returns an empty set of deliveries. Dropping the
    /// set ends the task.
    pub(super) fn start(client: Client) -> Arc<Self> {
        let held = Arc::new(Self {
            client,
            state: Mutex::default(),
            changed: Arc::default(),
        });
        tokio::spawn(report_progress(
            Arc::downgrade(&held),
            Arc::clone(&held.changed),
        ));
        held
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a delivery. The task reports its progress to the server each time this interval has
    /// passed.
    pub(super) fn add(&self, place: i64, reply: Subject, every: Duration) {
        let due = Instant::now() + every;
        let mut state = self.state();
        state
            .deliveries
            .insert(place, Delivery { reply, every, due });
        let is_first = state
            .next_report
            .is_none_or(|next_report| due < next_report);
        drop(state);
        if is_first {
            self.changed.notify_waiters();
        }
    }

    /// Returns whether this delivery is held and has not been replaced by a redelivery of its
    /// message.
    pub(super) fn has(&self, place: i64, reply: &Subject) -> bool {
        self.state().has(place, reply)
    }

    /// Removes a delivery, so that the task reports no more progress of it. Returns false if a
    /// redelivery of its message has replaced it.
    pub(super) fn remove(&self, place: i64, reply: &Subject) -> bool {
        let mut state = self.state();
        let is_held = state.has(place, reply);
        if is_held {
            state.deliveries.remove(&place);
        }
        is_held
    }

    /// Reports progress of the deliveries that are due. Returns the time of the next report.
    fn report_due(&self) -> Option<Instant> {
        let mut state = self.state();
        let now = Instant::now();
        let all_sent = self.client.connection_state() == Connection::Connected
            && state.deliveries.values_mut().all(|held| {
                // Includes deliveries that are due soon, so that deliveries that arrived together
                // are reported together.
                if held.due > now + held.every / 2 {
                    return true;
                }
                // Publish under the lock and without waiting: a report that is sent after the
                // settlement of the delivery would delay a redelivery.
                let progress = self
                    .client
                    .publish(held.reply.clone(), AckKind::Progress.into());
                let is_sent = matches!(unconstrained(progress).now_or_never(), Some(Ok(())));
                if is_sent {
                    held.due = now + held.every;
                }
                is_sent
            });
        let next = state.deliveries.values().map(|held| held.due).min();
        state.next_report = if all_sent {
            next
        } else {
            next.map(|_| now + AGAIN_AFTER)
        };
        state.next_report
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.changed.notify_waiters();
    }
}

async fn report_progress(held: Weak<Held>, changed: Arc<Notify>) {
    loop {
        let changed = changed.notified();
        let Some(next) = held.upgrade().map(|held| held.report_due()) else {
            return;
        };
        select! {
            () = changed => {}
            () = wait_until(next) => {}
        }
    }
}
