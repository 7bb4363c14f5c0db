//! Inserts rows without the executor. Such an insert needs no plan, no search_path and no
//! privileges of the caller.

use super::delete::delete_row;
use super::opened::Row;
use super::{Table, routine};
use crate::errors::Error;
use crate::pause::{is_left_out, pause_point};
use pgrx::pg_sys;
use pgrx::pg_sys::Datum;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;

/// The result of an insert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inserted {
    Yes,
    /// Another transaction inserted the key first: look again.
    Taken,
    /// `agree` returned false, so the row was removed again.
    Withdrawn,
}

/// Inserts rows into one table, each row only if its unique key is not taken.
pub struct Inserter<'t> {
    table: &'t Table,
    /// Taken from the table for the first insert, because a duplicate inserts nothing.
    row: Option<Row>,
    /// The memory context of the caller of `new`.
    context: pg_sys::MemoryContext,
}

impl<'t> Inserter<'t> {
    pub fn new(table: &'t Table) -> Self {
        Inserter {
            table,
            row: None,
            // SAFETY: reads a variable of the backend.
            context: unsafe { pg_sys::CurrentMemoryContext },
        }
    }

    /// Fills the slot with a row. Returns the slot, and the command that inserts it.
    fn prepare_row(&mut self, values: &[Option<Datum>]) -> (Row, pg_sys::CommandId) {
        let (table, context) = (self.table, self.context);
        let row = *self.row.get_or_insert_with(|| table.take_row(context));
        // SAFETY: the slot has the table's columns, which the caller's values match.
        unsafe {
            fill(row.slot, values);
            (*row.slot).tts_tableOid = table.oid();
            (row, pg_sys::GetCurrentCommandId(true))
        }
    }

    /// Inserts a row unless its unique key is taken, by the speculative protocol of ON CONFLICT.
    /// Returns false if another transaction inserted the key first; the caller must then look
    /// again. A conflict in another index of the table is an error.
    ///
    /// `values` are all columns of the table, in order; `None` is NULL.
    pub fn insert(&mut self, values: &[Option<Datum>]) -> bool {
        let inserted = self.insert_if(values, || Ok::<_, std::convert::Infallible>(true));
        matches!(inserted, Ok(Inserted::Yes))
    }

    /// Returns the TID of the row that was inserted last.
    pub(super) fn tid(&self) -> Option<pg_sys::ItemPointerData> {
        // SAFETY: the slot exists while this value does.
        self.row.map(|row| unsafe { (*row.slot).tts_tid })
    }

    /// Inserts a row whose key is probably not taken. Returns false if the key is taken.
    ///
    /// This is cheaper than a speculative insertion, which takes a lock and writes one more record
    /// of WAL. But if the key is taken, the row is deleted again. It stays as a dead row, and other
    /// transactions see it in progress until this transaction ends. So only one transaction at a
    /// time may use this function for a key. The others use [`Inserter::insert`].
    pub fn insert_ordinary(&mut self, values: &[Option<Datum>]) -> bool {
        let (Row { slot, info }, command) = self.prepare_row(values);
        let table = self.table;
        let heap = table.heap;
        // SAFETY: `prepare_row` has filled the slot. The functions and their order are those of
        // ExecInsert. An error in between leaves a dead tuple of an aborted transaction.
        unsafe {
            let insert = routine(heap, |am| am.tuple_insert);
            pg_guard_ffi_boundary(|| insert(heap, slot, command, 0, std::ptr::null_mut()));
            pause_point("insert: ordinary row");
            let unique = index_insert(
                table.index,
                slot,
                heap,
                info,
                pg_sys::IndexUniqueCheck::UNIQUE_CHECK_PARTIAL,
            );
            if unique {
                self.insert_other_indexes(slot);
            } else if !is_left_out("insert: delete") {
                delete_row(heap, (*slot).tts_tid);
            }
            unique
        }
    }

    /// Inserts a row unless the key is taken or `agree` returns false. `agree` is called while
    /// other transactions can see the speculative row. If it returns false, the row is removed as
    /// if it had never existed, and transactions that wait for it continue. `agree` must neither
    /// wait nor write.
    pub fn insert_if<E>(
        &mut self,
        values: &[Option<Datum>],
        agree: impl FnOnce() -> Result<bool, E>,
    ) -> Result<Inserted, E> {
        let (Row { slot, info }, command) = self.prepare_row(values);
        let table = self.table;
        let heap = table.heap;
        // SAFETY: `prepare_row` has filled the slot. The functions and their order are those of
        // ExecInsert with ON CONFLICT. An error in between leaves a dead tuple of an aborted
        // transaction.
        unsafe {
            let xid = pg_sys::GetCurrentTransactionId();
            let (insert, complete) = routine(heap, |am| {
                am.tuple_insert_speculative
                    .zip(am.tuple_complete_speculative)
            });
            let token = pg_sys::SpeculativeInsertionLockAcquire(xid);
            pg_guard_ffi_boundary(|| insert(heap, slot, command, 0, std::ptr::null_mut(), token));
            pause_point("insert: before index");
            let unique = index_insert(
                table.index,
                slot,
                heap,
                info,
                pg_sys::IndexUniqueCheck::UNIQUE_CHECK_PARTIAL,
            );
            pause_point("insert: before complete");
            let agreed = if unique { agree() } else { Ok(false) };
            let succeeded = matches!(agreed, Ok(true));
            pg_guard_ffi_boundary(|| complete(heap, slot, token, succeeded));
            pg_sys::SpeculativeInsertionLockRelease(xid);
            if agreed? {
                self.insert_other_indexes(slot);
                Ok(Inserted::Yes)
            } else if unique {
                Ok(Inserted::Withdrawn)
            } else {
                Ok(Inserted::Taken)
            }
        }
    }

    /// Inserts the row into the other indexes of the table, after the unique index has accepted it.
    /// A conflict in one of these indexes is an error (23505).
    unsafe fn insert_other_indexes(&self, slot: *mut pg_sys::TupleTableSlot) {
        if !self.table.has_other_indexes() {
            return;
        }
        // SAFETY: heap is open; RelationGetIndexList returns a list of its indexes in the current
        // memory context.
        unsafe {
            let list = pg_sys::RelationGetIndexList(self.table.heap);
            for n in 0..(*list).length {
                let oid = (*(*list).elements.add(n as usize)).oid_value;
                if oid == (*self.table.index).rd_id {
                    continue;
                }
                let index = pg_sys::index_open(oid, pg_sys::RowExclusiveLock as pg_sys::LOCKMODE);
                // An index that is being built concurrently takes no rows yet.
                if !(*(*index).rd_index).indisready {
                    pg_sys::index_close(index, pg_sys::RowExclusiveLock as pg_sys::LOCKMODE);
                    continue;
                }
                let info = pg_sys::BuildIndexInfo(index);
                if !(*info).ii_Expressions.is_null() || !(*info).ii_Predicate.is_null() {
                    Error::IndexIsNotPlain.raise();
                }
                let check = if (*(*index).rd_index).indisunique {
                    pg_sys::IndexUniqueCheck::UNIQUE_CHECK_YES
                } else {
                    pg_sys::IndexUniqueCheck::UNIQUE_CHECK_NO
                };
                index_insert(index, slot, self.table.heap, info, check);
                pg_sys::index_close(index, pg_sys::RowExclusiveLock as pg_sys::LOCKMODE);
            }
        }
    }
}

impl Drop for Inserter<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        if let Some(row) = self.row {
            self.table.return_row(row);
        }
    }
}

/// Fills a slot with the columns of a row. Raises 58000 if the table has another number of columns.
///
/// # Safety
/// Each column of the slot has the type of its value.
pub(super) unsafe fn fill(slot: *mut pg_sys::TupleTableSlot, values: &[Option<Datum>]) {
    // SAFETY: by the contract of this function. The slot has a column for each value.
    unsafe {
        let columns = (*(*slot).tts_tupleDescriptor).natts;
        if usize::try_from(columns) != Ok(values.len()) {
            let written = values.len();
            Error::OtherColumns { columns, written }.raise();
        }
        pg_sys::ExecClearTuple(slot);
        for (i, value) in values.iter().enumerate() {
            *(*slot).tts_values.add(i) = value.unwrap_or(Datum::from(0));
            *(*slot).tts_isnull.add(i) = value.is_none();
        }
        pg_sys::ExecStoreVirtualTuple(slot);
    }
}

/// Copies all columns of a slot into the current memory context and fetches them from TOAST,
/// because the table may be truncated before the values are used.
///
/// # Safety
/// The slot holds a row, and its table is locked.
pub(super) unsafe fn copy_of(slot: *mut pg_sys::TupleTableSlot) -> Vec<Option<Datum>> {
    // SAFETY: by the contract of this function; the copy has the columns of its descriptor.
    unsafe {
        let desc = (*slot).tts_tupleDescriptor;
        let found = pg_sys::ExecFetchSlotHeapTuple(slot, false, std::ptr::null_mut());
        let tuple = super::unbound::flatten(found, desc);
        let columns = (*desc).natts as usize;
        let mut values = vec![Datum::from(0); columns];
        let mut nulls = vec![false; columns];
        pg_sys::heap_deform_tuple(tuple, desc, values.as_mut_ptr(), nulls.as_mut_ptr());
        values
            .into_iter()
            .zip(nulls)
            .map(|(value, null)| (!null).then_some(value))
            .collect()
    }
}

/// # Safety
/// The slot holds a row that is stored in `heap`, and `index` is a btree on plain columns of it.
pub(super) unsafe fn index_insert(
    index: pg_sys::Relation,
    slot: *mut pg_sys::TupleTableSlot,
    heap: pg_sys::Relation,
    info: *mut pg_sys::IndexInfo,
    check: pg_sys::IndexUniqueCheck::Type,
) -> bool {
    let mut keys = [Datum::from(0); pg_sys::INDEX_MAX_KEYS as usize];
    let mut nulls = [false; pg_sys::INDEX_MAX_KEYS as usize];
    // SAFETY: by the contract of this function; plain columns need no executor state.
    unsafe {
        pg_sys::FormIndexDatum(
            info,
            slot,
            std::ptr::null_mut(),
            keys.as_mut_ptr(),
            nulls.as_mut_ptr(),
        );
        pg_sys::index_insert(
            index,
            keys.as_mut_ptr(),
            nulls.as_mut_ptr(),
            &mut (*slot).tts_tid,
            heap,
            check,
            false,
            info,
        )
    }
}
