//! What the backends share: counters, the worker's last pass, who waits. It exists only when the
//! library is preloaded; without it nothing is counted and waiters poll.

use pgrx::prelude::*;
use pgrx::{PGRXSharedMemory, PgAtomic, pg_shmem_init, pg_sys};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Databases that can have counters; those beyond go without.
const DATABASES: usize = 64;
/// Backends that can wait at once; those beyond poll.
pub const WAITERS: usize = 128;
pub const COUNTERS: usize = 8;

/// The part of one database.
pub struct Database {
    oid: AtomicU32,
    pub counters: [AtomicU64; COUNTERS],
    /// Transactions with effects that have committed.
    pub recordings: AtomicU64,
    /// Transactions that gave destinations something to do.
    pub receipts: AtomicU64,
    /// On the monotonic clock, in microseconds; 0: none yet.
    pub last_pass: AtomicI64,
    /// Whether messages are pending: see `pending::presence`. 0 after the start of the server:
    /// there may be some.
    pub pending: AtomicU32,
    /// The log has it that the library does not serve the version of the extension there.
    pub version_refused: AtomicBool,
}

/// A backend that waits for news of a database.
pub struct Waiter {
    pub database: AtomicU32,
    /// The bits of the news that it waits for: see `wake`.
    pub news: AtomicU32,
    /// The address of its latch, which is in shared memory; 0: the place is free.
    pub latch: AtomicUsize,
}

pub struct Shared {
    databases: [Database; DATABASES],
    pub waiters: [Waiter; WAITERS],
}

// SAFETY: only atomics, no pointers that mean anything else in another process.
unsafe impl PGRXSharedMemory for Shared {}

impl Default for Shared {
    fn default() -> Self {
        Shared {
            databases: std::array::from_fn(|_| Database {
                oid: AtomicU32::new(0),
                counters: std::array::from_fn(|_| AtomicU64::new(0)),
                recordings: AtomicU64::new(0),
                receipts: AtomicU64::new(0),
                last_pass: AtomicI64::new(0),
                pending: AtomicU32::new(0),
                version_refused: AtomicBool::new(false),
            }),
            waiters: std::array::from_fn(|_| Waiter {
                database: AtomicU32::new(0),
                news: AtomicU32::new(0),
                latch: AtomicUsize::new(0),
            }),
        }
    }
}

// SAFETY: the name is used once.
static SHARED: PgAtomic<Shared> = unsafe { PgAtomic::new(c"idem") };
static PRELOADED: AtomicBool = AtomicBool::new(false);

/// Asks for the shared memory; from `_PG_init` while preloading.
pub fn init() {
    pg_shmem_init!(SHARED);
    PRELOADED.store(true, Ordering::Relaxed);
}

/// The shared memory, when there is one.
pub fn shared() -> Option<&'static Shared> {
    PRELOADED.load(Ordering::Relaxed).then(|| SHARED.get())
}

/// Whether the library was preloaded.
pub fn preloaded() -> bool {
    PRELOADED.load(Ordering::Relaxed)
}

/// The part of this database; makes it at the first use.
pub fn this_database() -> Option<&'static Database> {
    // SAFETY: set once when the backend connects.
    let this = unsafe { pg_sys::MyDatabaseId };
    // A place that became free may lie before ours.
    part_of(this).or_else(|| {
        let this = this.to_u32();
        shared()?.databases.iter().find(|database| {
            let taken = database
                .oid
                .compare_exchange(0, this, Ordering::SeqCst, Ordering::SeqCst);
            taken.is_ok() || taken == Err(this)
        })
    })
}

fn part_of(database: pg_sys::Oid) -> Option<&'static Database> {
    let places = &shared()?.databases;
    places
        .iter()
        .find(|place| place.oid.load(Ordering::SeqCst) == database.to_u32())
}

/// Whether a backend of that database has used idem since the server started.
pub fn is_known(database: pg_sys::Oid) -> bool {
    part_of(database).is_some()
}

/// The databases that have a place.
pub fn known_databases() -> Vec<pg_sys::Oid> {
    let oids = shared().into_iter().flat_map(|shared| &shared.databases);
    oids.map(|database| database.oid.load(Ordering::SeqCst))
        .filter(|&oid| oid != 0)
        .map(pg_sys::Oid::from)
        .collect()
}

/// Gives the place of a dropped database back. Nobody is connected to it.
pub fn forget(database: pg_sys::Oid) {
    let Some(place) = part_of(database) else {
        return;
    };
    for counter in &place.counters {
        counter.store(0, Ordering::SeqCst);
    }
    place.recordings.store(0, Ordering::SeqCst);
    place.receipts.store(0, Ordering::SeqCst);
    place.last_pass.store(0, Ordering::SeqCst);
    place.pending.store(0, Ordering::SeqCst);
    place.version_refused.store(false, Ordering::SeqCst);
    place.oid.store(0, Ordering::SeqCst);
}
