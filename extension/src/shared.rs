//! State that the backends share. The server reserves it at its start, so it must preload the
//! library. For each database: counters, the time of the worker's last pass, whether messages are
//! pending, the highest floor of the relays, and whether a wrong version was logged. For the
//! server: its run, and the backends that wait.

use crate::errors::{Error, Result};
use pgrx::prelude::*;
use pgrx::{PGRXSharedMemory, PgAtomic, pg_shmem_init, pg_sys};
use std::cell::Cell;
use std::mem::size_of;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The number of databases that can have counters. Further databases have no counters.
pub const DATABASES: usize = 64;
/// The number of backends that can wait at the same time. Further backends poll.
pub const WAITERS: usize = 128;
pub const COUNTERS: usize = 8;

/// The number of copies of the counters of a database. Each backend uses one of them, because a
/// processor must fetch a counter that another one has written.
const COPIES: usize = 16;

/// A copy of the counters, in a cache line of its own.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Counters(pub [AtomicU64; COUNTERS]);

/// The shared state of one database.
pub struct Database {
    oid: AtomicU32,
    counters: [Counters; COPIES],
    /// The number of committed transactions with effects.
    pub recordings: AtomicU64,
    /// The number of committed transactions that made messages available to a destination.
    pub receipts: AtomicU64,
    /// The time of the worker's last pass on the monotonic clock, in microseconds; 0 before the
    /// first, and without the extension.
    pub last_pass: AtomicI64,
    /// Whether messages are pending (see `pending::presence`). 0, the value at server start, means
    /// that there may be some.
    pub pending: AtomicU32,
    /// The highest floor of the relays.
    pub floor: Floor,
    /// Whether the log already has a warning that the library does not support the extension's
    /// version in this database.
    pub version_warned: AtomicBool,
}

impl Database {
    /// Returns the counters of this backend.
    pub fn own_counters(&self) -> &Counters {
        // SAFETY: reads a variable of the backend.
        let pid = unsafe { pg_sys::MyProcPid };
        &self.counters[pid as usize % COPIES]
    }

    /// Returns the sum of a counter over all backends.
    pub fn sum(&self, counter: usize) -> u64 {
        let copies = self.counters.iter();
        copies
            .map(|Counters(copy)| copy[counter].load(Ordering::Relaxed))
            .sum()
    }
}

/// The highest floor of the relays of a database (see `outbox::floor`).
pub struct Floor {
    /// The sequence that the floor belongs to; 0 before the first use. It is another one after the
    /// extension was created again.
    pub sequence: AtomicU32,
    pub highest: AtomicI64,
    /// Whether `highest` includes the floors from before the start of the server.
    pub is_complete: AtomicBool,
}

impl Floor {
    pub const fn at_start() -> Self {
        Floor {
            sequence: AtomicU32::new(0),
            highest: AtomicI64::new(0),
            is_complete: AtomicBool::new(false),
        }
    }

    pub fn clear(&self) {
        self.is_complete.store(false, Ordering::SeqCst);
        self.highest.store(0, Ordering::SeqCst);
        self.sequence.store(0, Ordering::SeqCst);
    }
}

/// A backend that waits for events of a database.
pub struct Waiter {
    pub database: AtomicU32,
    /// The bits of the events that the backend waits for (see `wake`).
    pub events: AtomicU32,
    /// The address of the backend's latch, which is in shared memory; 0 means that the slot is
    /// free.
    pub latch: AtomicUsize,
}

pub struct Shared {
    /// A random number that is different after each start or crash of the server.
    run: u64,
    databases: [Database; DATABASES],
    pub waiters: [Waiter; WAITERS],
}

// SAFETY: the struct has only atomics, and a number that never changes. The latches are in shared
// memory, so their addresses are valid in every process.
unsafe impl PGRXSharedMemory for Shared {}

impl Default for Shared {
    fn default() -> Self {
        Shared {
            run: random(),
            databases: std::array::from_fn(|_| Database {
                oid: AtomicU32::new(0),
                counters: std::array::from_fn(|_| Counters::default()),
                recordings: AtomicU64::new(0),
                receipts: AtomicU64::new(0),
                last_pass: AtomicI64::new(0),
                pending: AtomicU32::new(0),
                floor: Floor::at_start(),
                version_warned: AtomicBool::new(false),
            }),
            waiters: std::array::from_fn(|_| Waiter {
                database: AtomicU32::new(0),
                events: AtomicU32::new(0),
                latch: AtomicUsize::new(0),
            }),
        }
    }
}

// SAFETY: the name is used once.
static SHARED: PgAtomic<Shared> = unsafe { PgAtomic::new(c"idem") };
static PRELOADED: AtomicBool = AtomicBool::new(false);

/// Returns whether the postmaster is preloading libraries.
pub fn is_preloading() -> bool {
    // SAFETY: reads a variable of the process.
    unsafe { pg_sys::process_shared_preload_libraries_in_progress }
}

/// Requests the shared memory. Called from `_PG_init` while libraries are preloaded.
pub fn init() {
    pg_shmem_init!(SHARED);
    PRELOADED.store(true, Ordering::Relaxed);
}

/// Returns a random number, or raises 58000.
pub fn random() -> u64 {
    let mut number = 0_u64;
    // SAFETY: fills the eight bytes of the number.
    if unsafe { !pg_sys::pg_strong_random((&raw mut number).cast(), size_of::<u64>()) } {
        Error::NoRandomNumbers.raise();
    }
    number
}

/// Returns a number that is different after each start or crash of the server, when no transaction
/// id of a backend has its earlier meaning.
pub fn server_run() -> u64 {
    shared().run
}

/// Returns the shared memory. Raises 58000 unless the library was preloaded.
pub fn shared() -> &'static Shared {
    if let Err(error) = ensure_preloaded() {
        error.raise();
    }
    SHARED.get()
}

/// Fails with 58000 unless the library was preloaded. This is no check of `_PG_init`, because
/// pg_upgrade and pg_dump load the library too.
pub fn ensure_preloaded() -> Result<()> {
    match is_preloaded() {
        true => Ok(()),
        false => Err(Error::NotPreloaded),
    }
}

pub fn is_preloaded() -> bool {
    PRELOADED.load(Ordering::Relaxed)
}

/// Returns the shared state of this database. Reserves a slot for it at the first use.
pub fn this_database() -> Option<&'static Database> {
    shared().databases.get(this_database_number()?)
}

/// Returns the number of the slot of this database. Reserves a slot for it at the first use. The
/// slot belongs to the database at least until all its backends have ended.
pub fn this_database_number() -> Option<usize> {
    thread_local! {
        static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
    }
    let number = NUMBER.get().or_else(find_this_database);
    NUMBER.set(number);
    number
}

fn find_this_database() -> Option<usize> {
    // SAFETY: MyDatabaseId is set once, when the backend connects.
    let this = unsafe { pg_sys::MyDatabaseId };
    // Search for the slot of this database before taking a free slot: an earlier slot may have
    // become free after this database took its slot.
    number_of(this).or_else(|| {
        let this = this.to_u32();
        shared().databases.iter().position(|database| {
            let taken = database
                .oid
                .compare_exchange(0, this, Ordering::SeqCst, Ordering::SeqCst);
            taken.is_ok() || taken == Err(this)
        })
    })
}

/// Returns the number of the slot of a database that has one.
pub fn number_of(database: pg_sys::Oid) -> Option<usize> {
    shared()
        .databases
        .iter()
        .position(|found| found.oid.load(Ordering::SeqCst) == database.to_u32())
}

/// Returns the shared state of a database that has a slot.
pub fn of(database: pg_sys::Oid) -> Option<&'static Database> {
    shared().databases.get(number_of(database)?)
}

/// Returns whether a backend of the database has used idem since the server started.
pub fn is_known(database: pg_sys::Oid) -> bool {
    of(database).is_some()
}

/// Returns the databases that have a slot.
pub fn databases() -> impl Iterator<Item = (pg_sys::Oid, &'static Database)> {
    shared().databases.iter().filter_map(|database| {
        let oid = database.oid.load(Ordering::SeqCst);
        (oid != 0).then_some((pg_sys::Oid::from(oid), database))
    })
}

/// Frees the slot of a dropped database. No backend is connected to such a database.
pub fn forget(database: pg_sys::Oid) {
    let Some(found) = of(database) else {
        return;
    };
    for counter in found.counters.iter().flat_map(|Counters(copy)| copy) {
        counter.store(0, Ordering::SeqCst);
    }
    found.recordings.store(0, Ordering::SeqCst);
    found.receipts.store(0, Ordering::SeqCst);
    found.last_pass.store(0, Ordering::SeqCst);
    found.pending.store(0, Ordering::SeqCst);
    found.floor.clear();
    found.version_warned.store(false, Ordering::SeqCst);
    found.oid.store(0, Ordering::SeqCst);
}
