//! What a source has fetched and what of it is not settled: each is leased, and its lease is renewed as long as it is here.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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
    /// Nothing more is fetched, and nobody waits.
    pub(super) is_closed: CancellationToken,
    /// Those who give something back later.
    pub(super) later: TaskTracker,
}

#[derive(Default)]
struct State {
    /// Fetched, and not delivered yet.
    waiting: VecDeque<Received>,
    /// When each was last renewed.
    leases: HashMap<Lease, Instant>,
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
            is_closed: CancellationToken::new(),
            later: TaskTracker::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No change of the state can panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next message to deliver. One whose lease was lost while it waited is another's.
    pub(super) fn take(&self) -> Option<Received> {
        let mut state = self.state();
        let State { waiting, leases } = &mut *state;
        std::iter::from_fn(|| waiting.pop_front()).find(|received| leases.contains_key(&lease_of(received)))
    }

    /// How many wait to be delivered.
    pub(super) fn waiting(&self) -> usize {
        self.state().waiting.len()
    }

    /// It is settled, or nobody will do so: its lease is not renewed any more.
    pub(super) fn forget(&self, lease: &Lease) {
        self.state().leases.remove(lease);
    }

    /// Fetches whenever somebody asks for more and too little waits, until the shelf is closed or the database fails.
    ///
    /// A task of its own, so that whoever gives up asking loses nothing that is on its way.
    pub(super) async fn fill(self: Arc<Self>) -> Result<(), Error> {
        let mut breaths = Pauses::new(BREATH.0, BREATH.1);
        loop {
            select! {
                () = self.is_closed.cancelled() => return Ok(()),
                () = self.wanted.notified() => {}
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
        // Never given up half-way: what is leased and not heard of would have to wait for the end of its lease.
        let asked = Instant::now();
        let received = self.desk.next().await?;
        let is_some = !received.is_empty();
        self.put(received, asked);
        if self.is_closed.is_cancelled() {
            self.clear(Duration::ZERO).await;
        }
        self.arrived.notify_one();
        Ok(is_some)
    }

    async fn wait(&self, breaths: &mut Pauses) -> Result<(), Error> {
        if self.desk.wait().await? {
            // There may be something due that nobody can have yet: an earlier message of its key is being handled.
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
            state.waiting.push_back(received);
        }
    }

    /// Gives back what has waited for so long and was not delivered. What cannot be given back comes again after its lease.
    pub(super) async fn clear(&self, waited: Duration) {
        for received in self.take_stale(waited) {
            if let Err(error) = self.desk.release(&received.id, received.token, None, false).await {
                tracing::debug!(%error, "a message that was fetched ahead is not given back");
            }
        }
    }

    fn take_stale(&self, waited: Duration) -> Vec<Received> {
        let mut state = self.state();
        let State { waiting, leases } = &mut *state;
        let is_stale = |received: &Received| leases.get(&lease_of(received)).is_none_or(|asked| asked.elapsed() >= waited);
        let (stale, fresh) = waiting.drain(..).partition(is_stale);
        *waiting = fresh;
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
        let old = state.leases.iter().filter(|(_, renewed)| renewed.elapsed() >= age);
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
