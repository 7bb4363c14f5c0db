//! An open table with one of its indexes, and what it belongs to.

use super::scratch::within;
use pgrx::pg_sys;

/// A table and its index, as PostgreSQL has opened them.
#[derive(Clone, Copy)]
pub struct Opened {
    pub(super) heap: pg_sys::Relation,
    pub(super) index: pg_sys::Relation,
    pub(super) row: Option<Row>,
}

/// What the insert of a row needs.
#[derive(Clone, Copy)]
pub struct Row {
    pub slot: *mut pg_sys::TupleTableSlot,
    pub info: *mut pg_sys::IndexInfo,
}

/// Runs `work`. What it opens and allocates belongs to the transaction, and not to the statement.
/// After an error PostgreSQL itself sets the current resource owner.
pub fn in_transaction<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: a transaction is open; the previous owner is restored afterwards.
    unsafe {
        let before = pg_sys::CurrentResourceOwner;
        pg_sys::CurrentResourceOwner = pg_sys::TopTransactionResourceOwner;
        let result = within(pg_sys::TopTransactionContext, work);
        pg_sys::CurrentResourceOwner = before;
        result
    }
}

impl Row {
    /// Frees what the insert needed. Its owner must be the current resource owner.
    pub fn free(self) {
        // SAFETY: the slot and the description of the index are no longer used.
        unsafe {
            pg_sys::ExecDropSingleTupleTableSlot(self.slot);
            pg_sys::pfree(self.info.cast());
        }
    }
}

impl Opened {
    pub fn oid(&self) -> pg_sys::Oid {
        // SAFETY: heap is open.
        unsafe { (*self.heap).rd_id }
    }

    /// Closes a table that belongs to the transaction, and its index. The table stays locked.
    pub fn close(self) {
        in_transaction(|| {
            if let Some(row) = self.row {
                row.free();
            }
            // SAFETY: the table and the index are no longer used.
            unsafe {
                pg_sys::index_close(self.index, WRITING);
                pg_sys::table_close(self.heap, pg_sys::NoLock as pg_sys::LOCKMODE);
            }
        });
    }
}

pub const READING: pg_sys::LOCKMODE = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
pub const WRITING: pg_sys::LOCKMODE = pg_sys::RowExclusiveLock as pg_sys::LOCKMODE;
