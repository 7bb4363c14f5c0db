//! Counters of committed operations, per database, since the server started.

use crate::shared::{COUNTERS, this_database};
use crate::transaction_end::{End, Watcher, watch_transactions};
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
}

pub fn count(counter: Counter) {
    count_many(counter, 1);
}

pub fn count_many(counter: Counter, times: usize) {
    watch_transactions(Watcher::Counters, transaction_ended);
    let mut pending = PENDING.get();
    pending[counter as usize] += times as u64;
    PENDING.set(pending);
}

/// Adds the counts of a committed transaction to the shared counters. A prepared transaction is not
/// counted, because it may end in another backend.
fn transaction_ended(end: End) {
    let pending = PENDING.replace([0; COUNTERS]);
    if end == End::Committed
        && pending.iter().any(|&n| n > 0)
        && let Some(database) = this_database()
    {
        for (counter, n) in database.own_counters().0.iter().zip(pending) {
            if n > 0 {
                counter.fetch_add(n, Ordering::Relaxed);
            }
        }
    }
}

/// Returns the counters of this database by name. The list is empty if the database has no slot.
pub fn counters() -> Vec<(&'static str, i64)> {
    let Some(database) = this_database() else {
        return Vec::new();
    };
    let names = NAMES.into_iter().enumerate();
    names
        .map(|(counter, name)| (name, database.sum(counter) as i64))
        .collect()
}
