//! The deliveries that this process holds, from their arrival until they are settled.
//!
//! The server delivers a message again when it hears nothing of it for the time of the delivery.
//! While a message waits here, for whatever reason and however long, one task tells the server that
//! there is progress. So waiting causes no redelivery, which the server would count.
//!
//! The time is not limited: a handler that hangs keeps its message for as long as its process
//! lives, as with RabbitMQ.

use std::{
    collections::HashMap,
    future::pending,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use async_nats::{Client, Subject, connection::State as Connection, jetstream::AckKind};
use futures_util::FutureExt;
use tokio::{
    select,
    sync::Notify,
    task::unconstrained,
    time::{Instant, sleep_until},
};

/// The pause before another attempt, without a connection or while the client takes no more.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

pub(super) struct Held {
    client: Client,
    state: Mutex<State>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct State {
    /// By the place in the stream. A message that comes again takes the place of its earlier
    /// delivery.
    deliveries: HashMap<i64, Delivery>,
    looks_again: Option<Instant>,
}

struct Delivery {
    /// Differs from that of every other delivery.
    reply: Subject,
    every: Duration,
    due: Instant,
}

impl Held {
    /// Holds nothing yet. Its task ends when this is dropped.
    pub(super) fn start(client: Client) -> Arc<Self> {
        let held = Arc::new(Self {
            client,
            state: Mutex::default(),
            changed: Arc::default(),
        });
        tokio::spawn(tell(Arc::downgrade(&held), Arc::clone(&held.changed)));
        held
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds a delivery, and tells the server so in this interval.
    pub(super) fn add(&self, place: i64, reply: Subject, every: Duration) {
        let due = Instant::now() + every;
        let mut state = self.state();
        state
            .deliveries
            .insert(place, Delivery { reply, every, due });
        let is_first = state
            .looks_again
            .is_none_or(|looks_again| due < looks_again);
        drop(state);
        if is_first {
            self.changed.notify_waiters();
        }
    }

    /// Whether this delivery is held, and the message has not come again since.
    pub(super) fn has(&self, place: i64, reply: &Subject) -> bool {
        self.state()
            .deliveries
            .get(&place)
            .is_some_and(|held| held.reply == *reply)
    }

    /// Holds a delivery no longer: the server is told nothing more of it. Returns false when the
    /// message has come again since.
    pub(super) fn remove(&self, place: i64, reply: &Subject) -> bool {
        let mut state = self.state();
        let is_held = state
            .deliveries
            .get(&place)
            .is_some_and(|held| held.reply == *reply);
        if is_held {
            state.deliveries.remove(&place);
        }
        is_held
    }

    /// Tells the server of the deliveries that are due. Returns when the next one is.
    fn tell(&self) -> Option<Instant> {
        let mut state = self.state();
        let now = Instant::now();
        let is_told = self.client.connection_state() == Connection::Connected
            && state.deliveries.values_mut().all(|held| {
                // With those that are due soon: one round for all that came together.
                if held.due > now + held.every / 2 {
                    return true;
                }
                // Within the lock and without waiting, so that nothing follows a settlement: it
                // would put off a redelivery.
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
        state.looks_again = if is_told {
            next
        } else {
            next.map(|_| now + AGAIN_AFTER)
        };
        state.looks_again
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.changed.notify_waiters();
    }
}

async fn tell(held: Weak<Held>, changed: Arc<Notify>) {
    loop {
        let changed = changed.notified();
        let Some(next) = held.upgrade().map(|held| held.tell()) else {
            return;
        };
        select! {
            () = changed => {}
            () = at(next) => {}
        }
    }
}

/// Sleeps until this moment; for ever when there is none.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => pending().await,
    }
}
