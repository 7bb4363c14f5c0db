//! Lists the transactions that may still use an earlier state, for the fence of a rotation.

use pgrx::pg_sys;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// A transaction that held a lock when a list was read. Its text is that of
/// `pg_locks.virtualtransaction`.
#[derive(Clone, Copy)]
pub struct Locker(pg_sys::VirtualTransactionId);

impl Locker {
    fn backend(&self) -> i32 {
        #[cfg(any(feature = "pg17", feature = "pg18"))]
        return self.0.procNumber;
        #[cfg(not(any(feature = "pg17", feature = "pg18")))]
        return self.0.backendId;
    }

    fn new(backend: i32, number: u32) -> Self {
        Locker(pg_sys::VirtualTransactionId {
            #[cfg(any(feature = "pg17", feature = "pg18"))]
            procNumber: backend,
            #[cfg(not(any(feature = "pg17", feature = "pg18")))]
            backendId: backend,
            localTransactionId: number,
        })
    }

    /// Returns whether the transaction has ended. A prepared transaction has not ended.
    fn has_ended(self) -> bool {
        // SAFETY: VirtualXactLock accepts any virtual transaction id and, with `false`, does not
        // wait.
        unsafe { pg_sys::VirtualXactLock(self.0, false) }
    }
}

impl fmt::Display for Locker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.backend(), self.0.localTransactionId)
    }
}

impl FromStr for Locker {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (backend, number) = text.split_once('/').ok_or(())?;
        Ok(Locker::new(
            backend.parse().map_err(|_| ())?,
            number.parse().map_err(|_| ())?,
        ))
    }
}

/// Lists the transactions that hold a lock on a relation that conflicts with SHARE, as
/// WaitForLockers of CREATE INDEX CONCURRENTLY does. Call it after the step has committed and its
/// invalidation was sent: a transaction that locks later then reads the new state.
pub fn lockers_of(relation: pg_sys::Oid) -> Vec<Locker> {
    // SAFETY: an all-zero LOCKTAG is filled as SET_LOCKTAG_RELATION does; the result is palloc'd
    // and ends with an invalid entry.
    unsafe {
        let mut tag: pg_sys::LOCKTAG = std::mem::zeroed();
        tag.locktag_field1 = pg_sys::MyDatabaseId.to_u32();
        tag.locktag_field2 = relation.to_u32();
        tag.locktag_type = pg_sys::LockTagType::LOCKTAG_RELATION as u8;
        tag.locktag_lockmethodid = pg_sys::DEFAULT_LOCKMETHOD as u8;
        let list = pg_sys::GetLockConflicts(
            &tag,
            pg_sys::ShareLock as pg_sys::LOCKMODE,
            std::ptr::null_mut(),
        );
        let mut lockers = Vec::new();
        while (*list.add(lockers.len())).localTransactionId != pg_sys::InvalidLocalTransactionId {
            lockers.push(Locker(*list.add(lockers.len())));
        }
        lockers
    }
}

/// Removes the transactions that have ended. Returns when none is left or the time has passed.
pub fn still_running(mut lockers: Vec<Locker>, wait: Duration) -> Vec<Locker> {
    let deadline = Instant::now() + wait;
    loop {
        lockers.retain(|locker| !locker.has_ended());
        if lockers.is_empty() || Instant::now() >= deadline {
            return lockers;
        }
        sleep_ms(5);
    }
}

/// Sleeps for `ms` milliseconds, or until the latch of this process is set, and processes
/// interrupts.
pub fn sleep_ms(ms: i64) {
    // SAFETY: MyLatch belongs to this process.
    unsafe {
        pg_sys::WaitLatch(
            pg_sys::MyLatch,
            (pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH) as i32,
            ms,
            pg_sys::PG_WAIT_EXTENSION,
        );
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
    pgrx::check_for_interrupts!();
}
