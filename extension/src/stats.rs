//! Counters of committed operations, per database, since the server started.

use crate::ring;
use crate::shared::{COUNTERS, this_database};
use crate::wake;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::cell::Cell;
use std::sync::atomic::Ordering;

#[derive(Clone, Copy)]
pub enum Counter {
    Claimed,
    Duplicate,
    InProgress,
    Mismatch,
    Expired,
    EffectRecorded,
    EffectReplayed,
    EffectSent,
}

const NAMES: [&str; COUNTERS] = [
    "claimed",
    "duplicates",
    "in_progress",
    "mismatches",
    "expired",
    "effects_recorded",
    "effects_replayed",
    "effects_sent",
];

thread_local! {
    /// The counts of this transaction. They are added to the shared counters when it commits.
    static PENDING: Cell<[u64; COUNTERS]> = const { Cell::new([0; COUNTERS]) };
    static REGISTERED: Cell<bool> = const { Cell::new(false) };
}

pub fn count(counter: Counter) {
    count_many(counter, 1);
}

pub fn count_many(counter: Counter, times: usize) {
    watch_transactions();
    let mut pending = PENDING.get();
    pending[counter as usize] += times as u64;
    PENDING.set(pending);
}

/// Registers a callback for the end of each transaction of this backend. The callback updates the
/// counters, the waiters and the fence.
pub fn watch_transactions() {
    if !REGISTERED.get() {
        // SAFETY: this is called once in each backend; the callback lives as long as the library,
        // which is never unloaded.
        unsafe { pg_sys::RegisterXactCallback(Some(on_transaction_end), std::ptr::null_mut()) };
        REGISTERED.set(true);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn on_transaction_end(
    event: pg_sys::XactEvent::Type,
    _arg: *mut core::ffi::c_void,
) {
    use pg_sys::XactEvent::*;
    match event {
        XACT_EVENT_COMMIT => {
            let pending = PENDING.replace([0; COUNTERS]);
            if pending.iter().any(|&n| n > 0)
                && let Some(database) = this_database()
            {
                for (counter, n) in database.counters.iter().zip(pending) {
                    if n > 0 {
                        counter.fetch_add(n, Ordering::Relaxed);
                    }
                }
            }
            wake::transaction_committed();
            ring::transaction_ended();
        }
        // A prepared transaction is not counted, because it may end in another backend.
        XACT_EVENT_ABORT | XACT_EVENT_PREPARE => {
            PENDING.set([0; COUNTERS]);
            wake::discard_events();
            ring::transaction_ended();
        }
        _ => (),
    }
}

/// Returns the counters of this database by name. The list is empty if the library is not
/// preloaded.
pub fn counters() -> Vec<(&'static str, i64)> {
    let Some(database) = this_database() else {
        return Vec::new();
    };
    let values = database.counters.iter();
    NAMES
        .into_iter()
        .zip(values.map(|n| n.load(Ordering::Relaxed) as i64))
        .collect()
}
