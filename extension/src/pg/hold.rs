//! Locks the newest version of the row under a unique key, so that the caller can replace or delete
//! the row. This works at every isolation level, as in the apply worker of logical replication
//! (`execReplication.c`).

use super::{Found, Lookup, Settled, look_again, routine};
use crate::pause::pause_point;
use pgrx::pg_sys;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;

/// The result of an attempt to lock a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    Nothing,
    /// The row is locked until the end of the transaction. Its columns are those of the newest
    /// version.
    Held,
    /// Another transaction is writing the row, and the caller does not wait.
    Busy,
}

impl Lookup<'_> {
    /// Locks the only row under a unique key. The table must be open for writing.
    pub fn hold(&mut self, keys: &mut [pg_sys::ScanKeyData], wait: bool) -> Hold {
        look_again(|| match self.settle(keys, wait) {
            Settled::Nothing => Some(Hold::Nothing),
            Settled::Busy => Some(Hold::Busy),
            Settled::Row => self.hold_found(wait),
        })
    }

    /// Locks the found row. Returns `None` if the row was changed since it was found: the caller
    /// must look again. The table must be open for writing.
    pub fn hold_found(&mut self, wait: bool) -> Option<Hold> {
        pause_point("hold: before lock");
        match self.lock_found(wait) {
            pg_sys::TM_Result::TM_Ok => {
                self.unpin(Found::Row);
                Some(Hold::Held)
            }
            pg_sys::TM_Result::TM_WouldBlock => Some(Hold::Busy),
            _ => None,
        }
    }

    fn lock_found(&mut self, wait: bool) -> pg_sys::TM_Result::Type {
        let policy = if wait {
            pg_sys::LockWaitPolicy::LockWaitBlock
        } else {
            pg_sys::LockWaitPolicy::LockWaitSkip
        };
        let mut failure = pg_sys::TM_FailureData::default();
        // SAFETY: a row was found, so the slot holds a row of the table. Its TID is copied, because
        // the lock stores another row in the slot. The boundary turns PostgreSQL errors (a cancel,
        // a deadlock) into Rust panics.
        unsafe {
            // A row that this command wrote can be locked only by the next command, so start the
            // next command. This is allowed because no parallel operation runs in a function that
            // writes.
            pg_sys::CommandCounterIncrement();
            let lock = routine(self.table.heap, |am| am.tuple_lock);
            let mut tid = (*self.slot).tts_tid;
            let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot());
            let command = pg_sys::GetCurrentCommandId(false);
            let result = pg_guard_ffi_boundary(|| {
                lock(
                    self.table.heap,
                    &mut tid,
                    snapshot,
                    self.slot,
                    command,
                    pg_sys::LockTupleMode::LockTupleExclusive,
                    policy,
                    0,
                    &mut failure,
                )
            });
            pg_sys::UnregisterSnapshot(snapshot);
            result
        }
    }
}
