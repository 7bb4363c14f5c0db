//! What a source has fetched and what of it is not settled: each is leased, and its lease is
//! renewed as long as it is here.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    select,
    sync::Notify,
    time::{Instant, sleep},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Received, desk::Desk};
use crate::{Error, MessageId, relay::Pauses};

/// Between two looks when there is something due that nobody may have yet.
const BREATH: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

pub(super) struct Shelf {
    pub(super) desk: Desk,
    state: Mutex<State>,
    /// Somebody asks, and little waits.
    pub(super) wanted: Notify,
    /// There is something to take.
    pub(super) arrived: Notify,
    /// The last ones that were fetched had a suspect among them.
    is_wary: AtomicBool,
    /// Nothing more is fetched, and nobody waits.
    pub(super) is_closed: CancellationToken,
    /// Those who give something back later.
    pub(super) later: TaskTracker,
}

#[derive(Default)]
struct State {
    /// Fetched, and not delivered yet.
    waiting: VecDeque<Received>,
    waiting_bytes: usize,
    /// When each was last renewed.
    leases: HashMap<Lease, Instant>,
    /// A suspect that was delivered, and when.
    alone: Option<(Lease, Instant)>,
}

impl State {
    fn push(&mut self, received: Received) {
        self.waiting_bytes += received.size();
        self.waiting.push_back(received);
    }

    fn pop(&mut self) -> Option<Received> {
        let received = self.waiting.pop_front()?;
        self.waiting_bytes -= received.size();
        Some(received)
    }

    /// How many are delivered and not settled.
    fn in_hand(&self) -> usize {
        let waiting = self
            .waiting
            .iter()
            .filter(|received| self.leases.contains_key(&lease_of(received)));
        self.leases.len() - waiting.count()
    }
}

/// Messages that were fetched together have one token.
pub(super) type Lease = (i64, MessageId);

fn lease_of(received: &Received) -> Lease {
    (received.token, received.id.clone())
}

impl Shelf {
    pub(super) fn new(desk: Desk) -> Self {
        Self {
            desk,
            state: Mutex::default(),
            wanted: Notify::new(),
            arrived: Notify::new(),
            is_wary: AtomicBool::new(false),
            is_closed: CancellationToken::new(),
            later: TaskTracker::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No change of the state can panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next message to deliver, unless it has to wait for others that are in hand. One whose
    /// lease was lost while it waited is another's.
    pub(super) fn take(&self) -> Option<Received> {
        let mut state = self.state();
        while let Some(lost) = state
            .waiting
            .front()
            .map(lease_of)
            .filter(|lease| !state.leases.contains_key(lease))
        {
            tracing::debug!(token = lost.0, "the lease of a message that waited is lost");
            state.pop();
        }
        let is_suspect = state.waiting.front()?.lease_expired;
        if self.is_one_alone(&state) || is_suspect && state.in_hand() > 0 {
            return None;
        }
        let received = state.pop()?;
        state.alone = is_suspect.then(|| (lease_of(&received), Instant::now()));
        Some(received)
    }

    /// Whoever kills does so soon: a message that takes long does not hold up all others for as
    /// long.
    fn is_one_alone(&self, state: &State) -> bool {
        matches!(state.alone, Some((_, since)) if since.elapsed() < self.desk.lease)
    }

    /// Whether more should be fetched.
    pub(super) fn wants(&self) -> bool {
        let state = self.state();
        let has_suspect = state.waiting.iter().any(|received| received.lease_expired);
        let is_low = state.waiting.len() <= usize::try_from(self.desk.batch / 2).unwrap_or(0);
        let has_room = state.waiting_bytes <= self.desk.max_bytes / 2;
        !self.is_one_alone(&state) && !has_suspect && is_low && has_room
    }

    /// It is settled, or nobody will do so: its lease is not renewed any more.
    pub(super) fn forget(&self, lease: &Lease) {
        let mut state = self.state();
        state.leases.remove(lease);
        if state.alone.take_if(|(alone, _)| alone == lease).is_some() || state.in_hand() == 0 {
            // Somebody may have waited for it.
            self.arrived.notify_one();
        }
    }

    /// Fetches whenever somebody asks for more and too little waits, until the shelf is closed or
    /// the database fails.
    ///
    /// A task of its own, so that whoever gives up asking loses nothing that is on its way.
    pub(super) async fn fill(self: Arc<Self>) -> Result<(), Error> {
        let mut breaths = Pauses::new(BREATH.0, BREATH.1);
        loop {
            select! {
                () = self.is_closed.cancelled() => return Ok(()),
                () = self.wanted.notified() => {}
            }
            // It was wanted some time ago; meanwhile a suspect may be in hand.
            if !self.wants() {
                continue;
            }
            while !self.is_closed.is_cancelled() && !self.fetch().await? {
                select! {
                    () = self.is_closed.cancelled() => {}
                    waited = self.wait(&mut breaths) => waited?,
                }
            }
            breaths.reset();
        }
    }

    /// Whether there was something.
    async fn fetch(&self) -> Result<bool, Error> {
        // Never given up half-way: what is leased and not heard of would have to wait for the end
        // of its lease.
        let asked = Instant::now();
        let (at_most, max_bytes) = self.room();
        let mut received = self.desk.next(at_most, max_bytes).await?;
        let is_some = !received.is_empty();
        let suspect = received.iter().position(|received| received.lease_expired);
        self.is_wary.store(suspect.is_some(), Ordering::Relaxed);
        // Behind a suspect nothing waits: what kills this process would be counted against it too.
        let behind = suspect
            .map(|at| received.split_off(at + 1))
            .unwrap_or_default();
        self.put(received, asked);
        // What came does not wait until the database has taken back the rest.
        self.arrived.notify_one();
        self.give_back(behind).await;
        if self.is_closed.is_cancelled() {
            self.clear(Duration::ZERO).await;
        }
        Ok(is_some)
    }

    /// How many messages to ask for, and how many bytes of them fit.
    fn room(&self) -> (i32, usize) {
        let at_most = if self.is_wary.load(Ordering::Relaxed) {
            1
        } else {
            self.desk.batch
        };
        (
            at_most,
            self.desk
                .max_bytes
                .saturating_sub(self.state().waiting_bytes),
        )
    }

    async fn wait(&self, breaths: &mut Pauses) -> Result<(), Error> {
        if self.desk.wait().await? {
            // There may be something due that nobody can have yet: an earlier message of its key is
            // being handled.
            sleep(breaths.next()).await;
        } else {
            breaths.reset();
        }
        Ok(())
    }

    fn put(&self, received: Vec<Received>, asked: Instant) {
        let mut state = self.state();
        for received in received {
            state.leases.insert(lease_of(&received), asked);
            state.push(received);
        }
    }

    /// Gives back what has waited for so long and was not delivered. What cannot be given back
    /// comes again after its lease. Returns how many went back.
    pub(super) async fn clear(&self, waited: Duration) -> u64 {
        self.give_back(self.take_stale(waited)).await
    }

    async fn give_back(&self, received: Vec<Received>) -> u64 {
        let mut given_back = 0;
        for received in received {
            match self
                .desk
                .release(&received.id, received.token, None, false)
                .await
            {
                Ok(_) => given_back += 1,
                Err(error) => {
                    tracing::debug!(%error, "a message that was fetched ahead is not given back")
                }
            }
        }
        given_back
    }

    fn take_stale(&self, waited: Duration) -> Vec<Received> {
        let mut state = self.state();
        let State {
            waiting,
            waiting_bytes,
            leases,
            ..
        } = &mut *state;
        let is_stale = |received: &Received| {
            leases
                .get(&lease_of(received))
                .is_none_or(|asked| asked.elapsed() >= waited)
        };
        let (stale, fresh) = waiting.drain(..).partition(is_stale);
        *waiting = fresh;
        *waiting_bytes = waiting.iter().map(Received::size).sum();
        for received in &stale {
            leases.remove(&lease_of(received));
        }
        Vec::from(stale)
    }

    /// Renews leases until the shelf is closed and all is settled.
    pub(super) async fn keep(self: Arc<Self>) {
        let lease = self.desk.lease;
        let look = (lease / 6).max(Duration::from_millis(10));
        loop {
            sleep(look).await;
            // All who handle are busy here, and elsewhere somebody may not be.
            self.clear(look).await;
            self.arrived.notify_one();
            let (asked, old) = (Instant::now(), self.old(lease / 3));
            if !old.is_empty() {
                match self.desk.extend(&old).await {
                    Ok(held) => self.renewed(&old, &held, asked),
                    Err(error) => tracing::debug!(%error, "leases are not renewed yet"),
                }
            }
            if self.is_closed.is_cancelled() && self.state().leases.is_empty() {
                return;
            }
        }
    }

    /// The leases that were not renewed for so long.
    fn old(&self, age: Duration) -> Vec<Lease> {
        let state = self.state();
        let old = state
            .leases
            .iter()
            .filter(|(_, renewed)| renewed.elapsed() >= age);
        old.map(|(lease, _)| lease.clone()).collect()
    }

    fn renewed(&self, leases: &[Lease], are_held: &[bool], asked: Instant) {
        let mut state = self.state();
        for (lease, is_held) in leases.iter().zip(are_held) {
            if !is_held {
                state.leases.remove(lease);
            } else if let Some(renewed) = state.leases.get_mut(lease) {
                *renewed = asked;
            }
        }
    }
}
