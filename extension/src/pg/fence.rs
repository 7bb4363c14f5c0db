//! Lists the transactions that may still use an earlier state, for the fence of a rotation.

use pgrx::pg_sys;

/// The transactions that were writing to a relation when the list was read: each held a lock that
/// conflicts with SHARE. WaitForLockers of CREATE INDEX CONCURRENTLY waits for the same
/// transactions, but this list can be checked repeatedly without waiting.
pub struct Lockers(Vec<pg_sys::VirtualTransactionId>);

impl Lockers {
    /// Lists the transactions that hold a conflicting lock now. Call it after the step has
    /// committed and its invalidation was sent: a transaction that locks later then reads the new
    /// state.
    pub fn of(relation: pg_sys::Oid) -> Self {
        // SAFETY: an all-zero LOCKTAG is filled as SET_LOCKTAG_RELATION does; the result is
        // palloc'd and ends with an invalid entry.
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
            while (*list.add(lockers.len())).localTransactionId != pg_sys::InvalidLocalTransactionId
            {
                lockers.push(*list.add(lockers.len()));
            }
            Lockers(lockers)
        }
    }

    /// Returns whether all transactions had ended at the last check.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes the transactions that have ended. Returns true if no transaction is left. Prepared
    /// transactions count until they are resolved.
    pub fn have_ended(&mut self) -> bool {
        // SAFETY: VirtualXactLock accepts any virtual transaction id and, with `false`, does not
        // wait.
        self.0
            .retain(|&vxid| unsafe { !pg_sys::VirtualXactLock(vxid, false) });
        self.0.is_empty()
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
