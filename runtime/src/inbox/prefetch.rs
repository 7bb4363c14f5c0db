//! Holds the messages that a source has fetched and that are not settled, and renews their leases.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use idem_client::{MessageId, inbox::Received, lease::Held};
use tokio::{
    select,
    sync::Notify,
    time::{Instant, sleep},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::client::InboxClient;
use crate::{
    Error, Message,
    backoff::{Backoff, Pauses},
    stored::Stored,
};

/// The pauses before the next fetch, when `idem_next_wait` reported a message but `idem_next`
/// returned none.
const AFTER_EMPTY_FETCH: Pauses = Pauses::from_millis(2, 100);

pub(super) struct Prefetch {
    pub(super) inbox: InboxClient,
    state: Mutex<State>,
    /// Notified when the consumer waits for messages and few are prefetched.
    pub(super) wanted: Notify,
    /// Notified when a message may be available.
    pub(super) arrived: Notify,
    /// Whether the latest fetch returned a suspect: a message with an expired lease, which may have
    /// crashed its consumer.
    last_fetch_had_suspect: AtomicBool,
    /// Cancelled when the source is closed: nothing more is fetched, and all waits end.
    pub(super) is_closed: CancellationToken,
    /// The tasks that release a message after a delay.
    pub(super) later: TaskTracker,
}

/// A message that was fetched and not delivered yet.
pub(super) struct Fetched {
    pub(super) message: Message,
    pub(super) stored: Stored,
    /// Whether its previous lease has expired, so that it may have crashed its consumer.
    is_suspect: bool,
}

impl Fetched {
    fn lease(&self) -> Lease {
        lease_of(&self.stored.held)
    }
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Fetched>,
    waiting_bytes: usize,
    /// When each lease was last renewed.
    leases: HashMap<Lease, Instant>,
    /// The suspect that was delivered last, and when it was delivered. While it is processed, no
    /// other message is delivered, for at most the time of one lease.
    alone: Option<(Lease, Instant)>,
}

impl State {
    fn push(&mut self, fetched: Fetched) {
        self.waiting_bytes += fetched.message.size();
        self.waiting.push_back(fetched);
    }

    fn pop(&mut self) -> Option<Fetched> {
        let fetched = self.waiting.pop_front()?;
        self.waiting_bytes -= fetched.message.size();
        Some(fetched)
    }

    /// Returns the number of messages that are delivered and not settled.
    fn in_hand(&self) -> usize {
        let waiting = self
            .waiting
            .iter()
            .filter(|fetched| self.leases.contains_key(&fetched.lease()));
        self.leases.len() - waiting.count()
    }
}

/// A lease: token and message id. All messages of one fetch have the same token.
pub(super) type Lease = (i64, MessageId);

fn lease_of(held: &Held) -> Lease {
    (held.token(), held.id().clone())
}

impl Prefetch {
    pub(super) fn new(inbox: InboxClient) -> Self {
        Self {
            inbox,
            state: Mutex::default(),
            wanted: Notify::new(),
            arrived: Notify::new(),
            last_fetch_had_suspect: AtomicBool::new(false),
            is_closed: CancellationToken::new(),
            later: TaskTracker::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state of a poisoned lock is valid, because no change of the state can panic halfway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next message to deliver. Returns `None` if there is none, or if it must wait
    /// because a suspect is processed alone. Drops prefetched messages that have lost their lease,
    /// because another process may hold them.
    pub(super) fn take(&self) -> Option<Fetched> {
        let mut state = self.state();
        while let Some(lost) = state
            .waiting
            .front()
            .map(Fetched::lease)
            .filter(|lease| !state.leases.contains_key(lease))
        {
            tracing::debug!(token = lost.0, "the lease of a prefetched message is lost");
            state.pop();
        }
        let is_suspect = state.waiting.front()?.is_suspect;
        if self.is_one_alone(&state) || is_suspect && state.in_hand() > 0 {
            return None;
        }
        let fetched = state.pop()?;
        state.alone = is_suspect.then(|| (fetched.lease(), Instant::now()));
        Some(fetched)
    }

    /// Returns whether a suspect is being processed alone. A message that crashes its consumer
    /// crashes it early, so a suspect is isolated only for the time of one lease.
    fn is_one_alone(&self, state: &State) -> bool {
        matches!(state.alone, Some((_, since)) if since.elapsed() < self.inbox.lease)
    }

    /// Returns whether more messages should be fetched.
    pub(super) fn wants(&self) -> bool {
        let state = self.state();
        let has_suspect = state.waiting.iter().any(|fetched| fetched.is_suspect);
        let is_low = state.waiting.len() <= usize::try_from(self.inbox.batch / 2).unwrap_or(0);
        let has_room = state.waiting_bytes <= self.inbox.max_bytes / 2;
        !self.is_one_alone(&state) && !has_suspect && is_low && has_room
    }

    /// Stops the renewal of a lease: its message is settled, or its receipt was dropped.
    pub(super) fn forget(&self, held: &Held) {
        let lease = lease_of(held);
        let mut state = self.state();
        state.leases.remove(&lease);
        if state.alone.take_if(|(alone, _)| *alone == lease).is_some() || state.in_hand() == 0 {
            // The next message may have waited until this message ended.
            self.arrived.notify_one();
        }
    }

    /// Fetches messages whenever `wanted` is notified and few are prefetched, until the source is
    /// closed or the database fails.
    ///
    /// This runs in a task of its own, so that no message is lost when the consumer drops the
    /// future of `next` during a fetch.
    pub(super) async fn fill(self: Arc<Self>) -> Result<(), Error> {
        let mut backoff = AFTER_EMPTY_FETCH.start();
        loop {
            select! {
                () = self.is_closed.cancelled() => return Ok(()),
                () = self.wanted.notified() => {}
            }
            // The notification may be outdated: a suspect may have been delivered after it.
            if !self.wants() {
                continue;
            }
            while !self.is_closed.is_cancelled() && !self.fetch().await? {
                select! {
                    () = self.is_closed.cancelled() => {}
                    waited = self.wait(&mut backoff) => waited?,
                }
            }
            backoff.reset();
        }
    }

    /// Fetches messages. Returns whether there were any.
    async fn fetch(&self) -> Result<bool, Error> {
        // Never cancel this function. The server may have leased messages that this process has not
        // received yet, and they would have to wait until their lease expires.
        let requested_at = Instant::now();
        let (at_most, max_bytes) = self.fetch_limits();
        let received = self.inbox.next(at_most, max_bytes).await?;
        let is_some = !received.is_empty();
        let suspect = received.iter().position(|received| received.lease_expired);
        let mut fetched: Vec<_> = received
            .iter()
            .map(|received| self.fetched(received, requested_at))
            .collect();
        self.last_fetch_had_suspect
            .store(suspect.is_some(), Ordering::Relaxed);
        // Do not prefetch messages behind a suspect. If the suspect crashes this process, the crash
        // would count against those messages too.
        let behind = suspect
            .map(|at| fetched.split_off(at + 1))
            .unwrap_or_default();
        self.put(fetched, requested_at);
        // Deliver the fetched messages first. Releasing the messages behind the suspect takes time.
        self.arrived.notify_one();
        self.release_all(behind).await;
        if self.is_closed.is_cancelled() {
            self.clear(Duration::ZERO).await;
        }
        Ok(is_some)
    }

    fn fetched(&self, received: &Received, requested_at: Instant) -> Fetched {
        let inbox = &self.inbox;
        let held = received.held(&inbox.destination, inbox.lease, requested_at.into_std());
        let stored = Stored::new(held, inbox.is_unrouted);
        Fetched {
            message: Message::leased(received, stored.clone()),
            stored,
            is_suspect: received.lease_expired,
        }
    }

    /// Returns the largest number of messages and of bytes to fetch.
    fn fetch_limits(&self) -> (i32, usize) {
        let at_most = if self.last_fetch_had_suspect.load(Ordering::Relaxed) {
            1
        } else {
            self.inbox.batch
        };
        (
            at_most,
            self.inbox
                .max_bytes
                .saturating_sub(self.state().waiting_bytes),
        )
    }

    async fn wait(&self, backoff: &mut Backoff) -> Result<(), Error> {
        if self.inbox.wait().await? {
            // The next fetch may still return nothing: another transaction may lock or lease the
            // message first, or `idem_next` moves it to the dead letters.
            sleep(backoff.next()).await;
        } else {
            backoff.reset();
        }
        Ok(())
    }

    fn put(&self, fetched: Vec<Fetched>, requested_at: Instant) {
        let mut state = self.state();
        for fetched in fetched {
            state.leases.insert(fetched.lease(), requested_at);
            state.push(fetched);
        }
    }

    /// Releases the prefetched messages that have waited for at least `waited`. A message that
    /// cannot be released is redelivered after its lease has expired. Returns the number of
    /// released messages.
    pub(super) async fn clear(&self, waited: Duration) -> u64 {
        self.release_all(self.take_stale(waited)).await
    }

    async fn release_all(&self, fetched: Vec<Fetched>) -> u64 {
        let mut released = 0;
        for fetched in fetched {
            let held = &fetched.stored.held;
            match self.inbox.release(held, None, false).await {
                Ok(_) => released += 1,
                Err(error) => {
                    tracing::debug!(%error, "cannot release a prefetched message")
                }
            }
        }
        released
    }

    fn take_stale(&self, waited: Duration) -> Vec<Fetched> {
        let mut state = self.state();
        let State {
            waiting,
            waiting_bytes,
            leases,
            ..
        } = &mut *state;
        let is_stale = |fetched: &Fetched| {
            leases
                .get(&fetched.lease())
                .is_none_or(|requested_at| requested_at.elapsed() >= waited)
        };
        let (stale, fresh) = waiting.drain(..).partition(is_stale);
        *waiting = fresh;
        *waiting_bytes = waiting.iter().map(|fetched| fetched.message.size()).sum();
        for fetched in &stale {
            leases.remove(&fetched.lease());
        }
        Vec::from(stale)
    }

    /// Renews the leases until the source is closed and all messages are settled.
    pub(super) async fn renew(self: Arc<Self>) {
        let lease = self.inbox.lease;
        let interval = (lease / 6).max(Duration::from_millis(10));
        loop {
            sleep(interval).await;
            // Messages that have waited this long show that all handlers of this process are busy,
            // so release these messages for other processes.
            self.clear(interval).await;
            self.arrived.notify_one();
            let (requested_at, old) = (Instant::now(), self.old(lease / 3));
            if !old.is_empty() {
                match self.inbox.extend(&old).await {
                    Ok(held) => self.renewed(&old, &held, requested_at),
                    Err(error) => tracing::debug!(%error, "cannot renew leases yet"),
                }
            }
            if self.is_closed.is_cancelled() && self.state().leases.is_empty() {
                return;
            }
        }
    }

    /// Returns the leases that were not renewed for at least `age`.
    fn old(&self, age: Duration) -> Vec<Lease> {
        let state = self.state();
        let old = state
            .leases
            .iter()
            .filter(|(_, renewed)| renewed.elapsed() >= age);
        old.map(|(lease, _)| lease.clone()).collect()
    }

    fn renewed(&self, leases: &[Lease], are_held: &[bool], requested_at: Instant) {
        let mut state = self.state();
        for (lease, is_held) in leases.iter().zip(are_held) {
            if !is_held {
                state.leases.remove(lease);
            } else if let Some(renewed) = state.leases.get_mut(lease) {
                *renewed = requested_at;
            }
        }
    }
}
