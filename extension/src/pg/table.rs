//! An open table with one of its unique indexes.

use crate::pause::pause_point;
use pgrx::pg_sys;
use std::cell::Cell;
use std::ffi::CStr;

/// A table and an index of it, open. Dropping it closes both; the index lock always goes, the table
/// lock goes unless the table was opened for writing. (An error leaves both to the resource owner,
/// as in any C function.)
pub struct Table {
    pub(super) heap: pg_sys::Relation,
    pub(super) index: pg_sys::Relation,
    lock: pg_sys::LOCKMODE,
    /// Whether the lock of the table stays to the end of the transaction.
    keeps_lock: Cell<bool>,
}

impl Table {
    /// Opens the table and its primary key to look something up. The locks go when it is dropped:
    /// before PostgreSQL 18 a backend has 16 cheap lock slots, and the business transaction needs
    /// them.
    pub fn for_reading(table: pg_sys::Oid) -> Self {
        Self::by_primary_key(table, pg_sys::AccessShareLock as pg_sys::LOCKMODE)
    }

    /// Opens the table and its primary key to insert. The table stays locked to the end of the
    /// transaction.
    pub fn for_writing(table: pg_sys::Oid) -> Self {
        Self::by_primary_key(table, pg_sys::RowExclusiveLock as pg_sys::LOCKMODE)
    }

    /// The same, but the lock goes when the table is dropped, unless [`Table::keep_lock`] was
    /// called.
    pub fn for_trying(table: pg_sys::Oid) -> Self {
        let table = Self::for_writing(table);
        table.keeps_lock.set(false);
        table
    }

    /// The table was written: it stays locked to the end of the transaction.
    pub fn keep_lock(&self) {
        self.keeps_lock.set(true);
    }

    /// The same with the index of that name; `None` when there is none.
    pub fn with_index(table: pg_sys::Oid, index: &CStr, for_writing: bool) -> Option<Self> {
        let lock = if for_writing {
            pg_sys::RowExclusiveLock
        } else {
            pg_sys::AccessShareLock
        };
        let lock = lock as pg_sys::LOCKMODE;
        pause_point("table: before lock");
        // REINDEX CONCURRENTLY gives an index another OID, and drops the old one when no lock on
        // the table is held any longer: the name is looked up under the lock. SAFETY: table_open
        // and index_open raise unless the OIDs name a table and an index.
        unsafe {
            let heap = pg_sys::table_open(table, lock);
            let Some(index) = super::relation_oid(index) else {
                pg_sys::table_close(heap, lock);
                return None;
            };
            let index = pg_sys::index_open(index, lock);
            Some(Self::opened(heap, index, lock))
        }
    }

    fn by_primary_key(table: pg_sys::Oid, lock: pg_sys::LOCKMODE) -> Self {
        // SAFETY: as in with_index.
        unsafe {
            let heap = pg_sys::table_open(table, lock);
            let index = pg_sys::index_open(primary_key(heap), lock);
            Self::opened(heap, index, lock)
        }
    }

    fn opened(heap: pg_sys::Relation, index: pg_sys::Relation, lock: pg_sys::LOCKMODE) -> Self {
        Table {
            heap,
            index,
            lock,
            keeps_lock: Cell::new(lock != pg_sys::AccessShareLock as pg_sys::LOCKMODE),
        }
    }

    pub fn oid(&self) -> pg_sys::Oid {
        // SAFETY: heap is open.
        unsafe { (*self.heap).rd_id }
    }

    /// Whether the table has no page at all: nothing can be found in it.
    pub fn is_empty(&self) -> bool {
        // SAFETY: heap is open.
        unsafe { has_no_page(self.heap) }
    }
}

/// # Safety
/// `heap` is an open relation.
unsafe fn has_no_page(heap: pg_sys::Relation) -> bool {
    // SAFETY: as the caller's.
    unsafe { pg_sys::RelationGetNumberOfBlocksInFork(heap, pg_sys::ForkNumber::MAIN_FORKNUM) == 0 }
}

/// The OID of the primary key's index; PostgreSQL 18 asks whether a deferrable one would do, and
/// ours are not.
///
/// # Safety
/// `heap` is an open relation.
unsafe fn primary_key(heap: pg_sys::Relation) -> pg_sys::Oid {
    // SAFETY: as the caller's.
    unsafe {
        #[cfg(feature = "pg18")]
        return pg_sys::RelationGetPrimaryKeyIndex(heap, false);
        #[cfg(not(feature = "pg18"))]
        return pg_sys::RelationGetPrimaryKeyIndex(heap);
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let keep = self.keeps_lock.get();
        // SAFETY: both are open and nothing borrows them any longer.
        unsafe {
            pg_sys::index_close(self.index, self.lock);
            pg_sys::table_close(
                self.heap,
                if keep {
                    pg_sys::NoLock as pg_sys::LOCKMODE
                } else {
                    self.lock
                },
            );
        }
    }
}
