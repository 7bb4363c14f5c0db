//! An open table with one of its indexes.

use super::kept;
use super::opened::{Opened, READING, Row, WRITING, in_transaction};
use super::scratch::within;
use crate::errors::Result;
use crate::pause::pause_point;
use pgrx::pg_sys;
use std::cell::Cell;
use std::ffi::CStr;
use std::ops::Deref;

/// An open table with one of its indexes. When this value is dropped, the table and the index are
/// closed, and the lock on the index is released. The lock on the table is released too, unless the
/// table was opened for writing. But the transaction keeps a table open that
/// [`Table::for_writing`] has opened outside savepoints. After an error the resource owner releases
/// all locks, as in any C function.
pub struct Table {
    opened: Opened,
    lock: pg_sys::LOCKMODE,
    /// Whether the lock on the table is kept until the end of the transaction.
    keeps_lock: Cell<bool>,
    /// Whether the transaction keeps the table open.
    is_kept: bool,
    /// What an inserter needs, while none uses it.
    row: Cell<Option<Row>>,
}

impl Table {
    /// Opens the table and its primary key for look-ups. The locks are released when the value is
    /// dropped: before PostgreSQL 18 a backend has 16 fast-path lock slots, and the business
    /// transaction needs them.
    pub fn for_reading(table: pg_sys::Oid) -> Self {
        Self::by_primary_key(table, READING)
    }

    /// Opens the table and its primary key for inserts. The table stays locked until the end of the
    /// transaction, which also keeps it open for its next insert.
    pub fn for_writing(table: pg_sys::Oid) -> Self {
        // SAFETY: reads the state of the transaction.
        if unsafe { pg_sys::GetCurrentTransactionNestLevel() } > 1 {
            return Self::by_primary_key(table, WRITING);
        }
        let mut opened = kept::take(table);
        // REINDEX CONCURRENTLY may have replaced the index.
        // SAFETY: the table and its index are open.
        let has_old_index =
            |opened: &mut Opened| unsafe { primary_key(opened.heap) != (*opened.index).rd_id };
        if let Some(old) = opened.take_if(has_old_index) {
            old.close();
        }
        let mut table = match opened {
            Some(opened) => {
                // SAFETY: the table is open and locked for writing.
                unsafe { super::triggers::ensure_only_own_triggers(opened.heap) };
                Self::new(opened, WRITING)
            }
            None => in_transaction(|| Self::by_primary_key(table, WRITING)),
        };
        table.is_kept = true;
        table
    }

    /// Like [`Table::for_writing`], but the lock is released when the value is dropped, unless
    /// [`Table::keep_lock`] was called.
    pub fn for_trying(table: pg_sys::Oid) -> Self {
        let table = Self::by_primary_key(table, WRITING);
        table.keeps_lock.set(false);
        table
    }

    /// Keeps the table locked until the end of the transaction, because it was written.
    pub fn keep_lock(&self) {
        self.keeps_lock.set(true);
    }

    /// Opens the table with the index of this name. Fails with 58000 if the index does not exist.
    pub fn with_index(table: pg_sys::Oid, index: &CStr, for_writing: bool) -> Result<Self> {
        let lock = if for_writing { WRITING } else { READING };
        pause_point("table: before lock");
        // REINDEX CONCURRENTLY replaces an index by an index with another OID. It drops the old
        // index when no other transaction locks the table, so look the name up under the lock.
        // SAFETY: table_open and index_open raise an error unless the OIDs are those of a table and
        // an index.
        unsafe {
            let heap = open_heap(table, lock);
            let index = super::relation(index).inspect_err(|_| pg_sys::table_close(heap, lock))?;
            let index = pg_sys::index_open(index, lock);
            let row = None;
            Ok(Self::new(Opened { heap, index, row }, lock))
        }
    }

    fn by_primary_key(table: pg_sys::Oid, lock: pg_sys::LOCKMODE) -> Self {
        // SAFETY: table_open and index_open raise an error unless the OIDs are those of a table and
        // an index.
        unsafe {
            let heap = open_heap(table, lock);
            let index = pg_sys::index_open(primary_key(heap), lock);
            let row = None;
            Self::new(Opened { heap, index, row }, lock)
        }
    }

    fn new(opened: Opened, lock: pg_sys::LOCKMODE) -> Self {
        Table {
            opened,
            lock,
            keeps_lock: Cell::new(lock == WRITING),
            is_kept: false,
            row: Cell::new(opened.row),
        }
    }

    /// Returns what the insert of a row needs. `context` is used if the table is not kept open.
    pub(super) fn take_row(&self, context: pg_sys::MemoryContext) -> Row {
        // SAFETY: table and index are open.
        let create = || unsafe {
            Row {
                slot: pg_sys::MakeSingleTupleTableSlot(
                    (*self.heap).rd_att,
                    pg_sys::table_slot_callbacks(self.heap),
                ),
                info: pg_sys::BuildIndexInfo(self.index),
            }
        };
        self.row.take().unwrap_or_else(|| match self.is_kept {
            true => in_transaction(create),
            false => within(context, create),
        })
    }

    /// Takes back what [`Table::take_row`] has returned.
    pub(super) fn return_row(&self, row: Row) {
        if !self.is_kept {
            row.free();
        } else if let Some(other) = self.row.replace(Some(row)) {
            in_transaction(|| other.free());
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
        self.opened.oid()
    }

    /// Returns whether the table has another index than this one.
    pub fn has_other_indexes(&self) -> bool {
        // SAFETY: heap is open; the function fills the list of the relation.
        unsafe {
            if !(*self.heap).rd_indexvalid {
                pg_sys::RelationGetIndexList(self.heap);
            }
            let list = (*self.heap).rd_indexlist;
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
        if lock == WRITING {
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

impl Deref for Table {
    type Target = Opened;

    fn deref(&self) -> &Opened {
        &self.opened
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        if self.is_kept {
            let opened = Opened {
                row: self.row.take(),
                ..self.opened
            };
            if let Some(opened) = kept::keep(opened) {
                opened.close();
            }
            return;
        }
        let on_table = match self.keeps_lock.get() {
            true => pg_sys::NoLock as pg_sys::LOCKMODE,
            false => self.lock,
        };
        // SAFETY: the table and the index are open and no longer borrowed.
        unsafe {
            pg_sys::index_close(self.index, self.lock);
            pg_sys::table_close(self.heap, on_table);
        }
    }
}
