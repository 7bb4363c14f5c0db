//! Wakes relays when effects are committed, and consumers when messages become available. It uses
//! shared memory, because NOTIFY takes a global lock at commit.

use crate::errors::{Error, given, invalid};
use crate::pg::sleep_ms;
use crate::shared::{Waiter, shared, this_database};
use crate::transaction_end::{End, Watcher, watch_transactions};
use pgrx::pg_sys;
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The longest wait, in milliseconds. A waiting relay holds a snapshot, which holds back VACUUM.
const LONGEST_WAIT_MS: i32 = 60_000;
/// The shortest and the longest sleep, in milliseconds, of a waiter that has no slot in shared
/// memory, so that no other backend can wake it. Each sleep of a session is twice as long as the
/// one before.
const POLL_MS: (i64, i64) = (10, 1_000);

/// Event: effects for the relays were recorded.
const EFFECTS: u32 = 1;
/// Event: messages of a destination were received or released, or became available because the
/// message before them is done.
pub const MESSAGES: u32 = 2;

thread_local! {
    /// The events whose waiters are woken when this transaction commits.
    static EVENTS: Cell<u32> = const { Cell::new(0) };
    /// The number of recordings at the last wait of this backend.
    static SEEN_RECORDINGS: Cell<u64> = const { Cell::new(0) };
    static IDLE_MS: Cell<i64> = const { Cell::new(POLL_MS.0) };
}

/// Wakes the relays when this transaction commits, because it has effects.
pub fn wake_relays(how_many: usize) {
    if how_many > 0 {
        wake_at_commit(EFFECTS);
    }
}

/// Wakes the consumers when this transaction commits, because it made messages available.
pub fn wake_consumers() {
    wake_at_commit(MESSAGES);
}

fn wake_at_commit(events: u32) {
    watch_transactions(Watcher::Waiters, transaction_ended);
    EVENTS.set(EVENTS.get() | events);
}

fn transaction_ended(end: End) {
    let events = EVENTS.replace(0);
    if events == 0 || end != End::Committed {
        return;
    }
    let Some(database) = this_database() else {
        return;
    };
    if events & EFFECTS != 0 {
        database.recordings.fetch_add(1, Ordering::SeqCst);
    }
    if events & MESSAGES != 0 {
        database.receipts.fetch_add(1, Ordering::SeqCst);
    }
    // SAFETY: MyDatabaseId is set once, when the backend connects.
    let this = unsafe { pg_sys::MyDatabaseId }.to_u32();
    for waiter in &shared().waiters {
        let latch = waiter.latch.load(Ordering::SeqCst);
        if latch != 0
            && waiter.database.load(Ordering::SeqCst) == this
            && waiter.events.load(Ordering::SeqCst) & events != 0
        {
            // SAFETY: `latch` is the address of a process's latch in shared memory. Setting a latch
            // without an owner does nothing.
            unsafe { pg_sys::SetLatch(latch as *mut pg_sys::Latch) };
        }
    }
}

/// The slot of a waiting backend in shared memory. The slot is freed when this value is dropped.
pub struct WaiterSlot(&'static Waiter);

impl WaiterSlot {
    pub fn take(events: u32) -> Option<Self> {
        // SAFETY: MyLatch and MyDatabaseId belong to this process; MyLatch points into shared
        // memory in a backend.
        let (latch, database) =
            unsafe { (pg_sys::MyLatch as usize, pg_sys::MyDatabaseId.to_u32()) };
        let slot = shared().waiters.iter().find(|waiter| {
            // A slot can be left over from a process that ended during its wait. Its latch then has
            // no owner, or this process owns the latch now.
            let taken_by = waiter.latch.load(Ordering::SeqCst);
            if taken_by != 0 {
                // SAFETY: `taken_by` is the address of a process's latch in shared memory. The
                // memory outlives the process.
                let owner = unsafe { (*(taken_by as *const pg_sys::Latch)).owner_pid };
                if owner == 0 {
                    let _ = waiter.latch.compare_exchange(
                        taken_by,
                        0,
                        Ordering::SeqCst,
                        Ordering::SeqCst,
                    );
                }
            }
            taken_by == latch
                || waiter
                    .latch
                    .compare_exchange(0, latch, Ordering::SeqCst, Ordering::SeqCst)
                    .is_ok()
        })?;
        slot.database.store(database, Ordering::SeqCst);
        slot.events.store(events, Ordering::SeqCst);
        Some(WaiterSlot(slot))
    }
}

impl Drop for WaiterSlot {
    fn drop(&mut self) {
        self.0.latch.store(0, Ordering::SeqCst);
    }
}

pub fn deadline(timeout_ms: Option<i32>) -> Result<Instant, Error> {
    let timeout_ms = given(timeout_ms, "timeout_ms")?;
    if !(0..=LONGEST_WAIT_MS).contains(&timeout_ms) {
        invalid(
            format!("timeout_ms is {timeout_ms}"),
            format!("It must be between 0 and {LONGEST_WAIT_MS}."),
        )?;
    }
    Ok(Instant::now() + Duration::from_millis(timeout_ms as u64))
}

/// Returns the time until the deadline, in milliseconds.
pub fn left_ms(deadline: Instant) -> i64 {
    deadline
        .saturating_duration_since(Instant::now())
        .as_millis() as i64
}

/// Waits until new effects are committed, but not after the deadline. Effects are new if they were
/// committed after the previous wait of this session. Returns true if there are new effects: the
/// relay then reads them with `idem_relay_next`. Returns false if no new effects are known: the
/// relay should still read from time to time.
///
/// Without a slot in shared memory the function only sleeps. Each sleep of the session is longer
/// than the one before, up to a limit.
pub fn wait_for_effects(deadline: Instant) -> bool {
    let slot = WaiterSlot::take(EFFECTS);
    let Some(database) = this_database().filter(|_| slot.is_some()) else {
        let idle = IDLE_MS.get();
        IDLE_MS.set((idle * 2).min(POLL_MS.1));
        sleep_ms(idle.min(left_ms(deadline)).max(1));
        return false;
    };
    loop {
        let recordings = database.recordings.load(Ordering::SeqCst);
        if recordings != SEEN_RECORDINGS.replace(recordings) {
            return true;
        }
        let left = left_ms(deadline);
        if left <= 0 {
            return false;
        }
        sleep_ms(left);
    }
}
