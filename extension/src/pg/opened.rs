//! An open table with one of its indexes, and the level of the transaction to which it belongs.

use super::scratch::within;
use pgrx::pg_sys;

/// A table and its index, as PostgreSQL has opened them.
#[derive(Clone, Copy)]
pub struct Opened {
    pub(super) heap: pg_sys::Relation,
    pub(super) index: pg_sys::Relation,
    /// The level to which both belong, if the transaction keeps them open.
    pub(super) level: Option<Level>,
    pub(super) row: Option<Row>,
}

/// What the insert of a row needs.
#[derive(Clone, Copy)]
pub struct Row {
    pub slot: *mut pg_sys::TupleTableSlot,
    pub info: *mut pg_sys::IndexInfo,
}

/// A level of the transaction: the transaction itself, or a savepoint in it.
#[derive(Clone, Copy)]
pub struct Level {
    owner: pg_sys::ResourceOwner,
    context: pg_sys::MemoryContext,
}

impl Level {
    pub fn present() -> Self {
        // SAFETY: reads variables of the backend, which is in a transaction.
        unsafe {
            Level {
                owner: pg_sys::CurTransactionResourceOwner,
                context: pg_sys::CurTransactionContext,
            }
        }
    }

    /// Runs `work`. What it opens and allocates belongs to this level, and not to the statement.
    /// After an error PostgreSQL itself sets the current resource owner.
    pub fn run<T>(self, work: impl FnOnce() -> T) -> T {
        // SAFETY: the level has not ended; the previous owner is restored afterwards.
        unsafe {
            let before = pg_sys::CurrentResourceOwner;
            pg_sys::CurrentResourceOwner = self.owner;
            let result = within(self.context, work);
            pg_sys::CurrentResourceOwner = before;
            result
        }
    }
}

impl Opened {
    pub fn new(heap: pg_sys::Relation, index: pg_sys::Relation, level: Option<Level>) -> Self {
        Opened {
            heap,
            index,
            level,
            row: None,
        }
    }

    pub fn oid(&self) -> pg_sys::Oid {
        // SAFETY: heap is open.
        unsafe { (*self.heap).rd_id }
    }

    /// Returns whether it belongs to the present level of the transaction.
    pub fn is_of_present_level(&self) -> bool {
        let present = Level::present();
        self.level.is_some_and(|level| level.owner == present.owner)
    }

    /// Closes the table, which stays locked, and the index.
    pub fn close(self) {
        let close = || {
            // SAFETY: the table, the index and the slot are no longer used.
            unsafe {
                if let Some(row) = self.row {
                    pg_sys::ExecDropSingleTupleTableSlot(row.slot);
                }
                pg_sys::index_close(self.index, WRITING);
                pg_sys::table_close(self.heap, pg_sys::NoLock as pg_sys::LOCKMODE);
            }
        };
        match self.level {
            Some(level) => level.run(close),
            None => close(),
        }
    }
}

pub const READING: pg_sys::LOCKMODE = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
pub const WRITING: pg_sys::LOCKMODE = pg_sys::RowExclusiveLock as pg_sys::LOCKMODE;
