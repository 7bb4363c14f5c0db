//! An open table with one of its indexes.

use crate::pause::pause_point;
use pgrx::pg_sys;
use std::cell::Cell;
use std::ffi::CStr;

/// An open table with one of its indexes. When this value is dropped, the table and the index are
/// closed, and the lock on the index is released. The lock on the table is released too, unless the
/// table was opened for writing. After an error the resource owner releases both locks, as in any C
/// function.
pub struct Table {
    pub(super) heap: pg_sys::Relation,
    pub(super) index: pg_sys::Relation,
    lock: pg_sys::LOCKMODE,
    /// Whether the lock on the table is kept until the end of the transaction.
    keeps_lock: Cell<bool>,
}

impl Table {
    /// Opens the table and its primary key for look-ups. The locks are released when the value is
    /// dropped: before PostgreSQL 18 a backend has 16 fast-path lock slots, and the business
    /// transaction needs them.
    pub fn for_reading(table: pg_sys::Oid) -> Self {
        Self::by_primary_key(table, pg_sys::AccessShareLock as pg_sys::LOCKMODE)
    }

    /// Opens the table and its primary key for inserts. The table stays locked until the end of the
    /// transaction.
    pub fn for_writing(table: pg_sys::Oid) -> Self {
        Self::by_primary_key(table, pg_sys::RowExclusiveLock as pg_sys::LOCKMODE)
    }

    /// Like [`Table::for_writing`], but the lock is released when the value is dropped, unless
    /// [`Table::keep_lock`] was called.
    pub fn for_trying(table: pg_sys::Oid) -> Self {
        let table = Self::for_writing(table);
        table.keeps_lock.set(false);
        table
    }

    /// Keeps the table locked until the end of the transaction, because it was written.
    pub fn keep_lock(&self) {
        self.keeps_lock.set(true);
    }

    /// Opens the table with the index of this name; `None` if the index does not exist.
    pub fn with_index(table: pg_sys::Oid, index: &CStr, for_writing: bool) -> Option<Self> {
        let lock = if for_writing {
            pg_sys::RowExclusiveLock
        } else {
            pg_sys::AccessShareLock
        };
        let lock = lock as pg_sys::LOCKMODE;
        pause_point("table: before lock");
        // REINDEX CONCURRENTLY replaces an index by an index with another OID. It drops the old
        // index when no other transaction locks the table, so look the name up under the lock.
        // SAFETY: table_open and index_open raise an error unless the OIDs are those of a table and
        // an index.
        unsafe {
            let heap = open_heap(table, lock);
            let Some(index) = super::relation_oid(index) else {
                pg_sys::table_close(heap, lock);
                return None;
            };
            let index = pg_sys::index_open(index, lock);
            Some(Self::opened(heap, index, lock))
        }
    }

    fn by_primary_key(table: pg_sys::Oid, lock: pg_sys::LOCKMODE) -> Self {
        // SAFETY: table_open and index_open raise an error unless the OIDs are those of a table and
        // an index.
        unsafe {
            let heap = open_heap(table, lock);
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

    /// Begins a scan of the index with this number of keys. The caller keeps the snapshot until it
    /// ends the scan.
    pub(super) fn begin_scan(
        &self,
        snapshot: pg_sys::Snapshot,
        keys: i32,
    ) -> pg_sys::IndexScanDesc {
        // SAFETY: table and index are open.
        unsafe {
            #[cfg(not(feature = "pg18"))]
            return pg_sys::index_beginscan(self.heap, self.index, snapshot, keys, 0);
            #[cfg(feature = "pg18")]
            return pg_sys::index_beginscan(
                self.heap,
                self.index,
                snapshot,
                std::ptr::null_mut(),
                keys,
                0,
            );
        }
    }

    pub fn oid(&self) -> pg_sys::Oid {
        // SAFETY: heap is open.
        unsafe { (*self.heap).rd_id }
    }

    /// Returns whether the table has another index than this one.
    pub fn has_other_indexes(&self) -> bool {
        // SAFETY: heap is open; the list is in the current memory context.
        unsafe {
            let list = pg_sys::RelationGetIndexList(self.heap);
            !list.is_null() && (*list).length > 1
        }
    }

    /// Returns whether the table has no page, so that nothing can be found in it.
    pub fn is_empty(&self) -> bool {
        // SAFETY: heap is open.
        unsafe { has_no_page(self.heap) }
    }
}

/// Opens a table. Raises 58000 if it is opened for writing and has a trigger of others.
///
/// # Safety
/// `table` is the OID of a table; any other OID raises an error.
unsafe fn open_heap(table: pg_sys::Oid, lock: pg_sys::LOCKMODE) -> pg_sys::Relation {
    // SAFETY: by the contract of this function.
    unsafe {
        let heap = pg_sys::table_open(table, lock);
        if lock != pg_sys::AccessShareLock as pg_sys::LOCKMODE {
            super::triggers::ensure_only_own_triggers(heap);
        }
        heap
    }
}

/// # Safety
/// `heap` is an open relation.
unsafe fn has_no_page(heap: pg_sys::Relation) -> bool {
    // SAFETY: guaranteed by the caller.
    unsafe { pg_sys::RelationGetNumberOfBlocksInFork(heap, pg_sys::ForkNumber::MAIN_FORKNUM) == 0 }
}

/// Returns the OID of the primary key's index. PostgreSQL 18 has an argument that accepts a
/// deferrable key; the keys of idem are not deferrable.
///
/// # Safety
/// `heap` is an open relation.
unsafe fn primary_key(heap: pg_sys::Relation) -> pg_sys::Oid {
    // SAFETY: guaranteed by the caller.
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
        // SAFETY: the table and the index are open and no longer borrowed.
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
