//! Ordered index scans by one snapshot, and locking a row that a scan found without waiting.

use super::{Table, insert};
use pgrx::pg_sys;
use pgrx::pg_sys::Datum;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;

/// The newest snapshot, registered until it is dropped: every scan that uses it sees the same
/// state.
pub struct Latest(pg_sys::Snapshot);

impl Latest {
    pub fn take() -> Self {
        // SAFETY: in a transaction. What this command has written becomes visible to the snapshot.
        unsafe {
            pg_sys::CommandCounterIncrement();
            Latest(pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot()))
        }
    }
}

impl Drop for Latest {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: registered in take, and used by no scan any longer.
            unsafe { pg_sys::UnregisterSnapshot(self.0) };
        }
    }
}

/// A scan of the table's index in its order.
pub struct Walk<'t> {
    scan: pg_sys::IndexScanDesc,
    slot: *mut pg_sys::TupleTableSlot,
    snapshot: &'t Latest,
    table: &'t Table,
}

impl<'t> Walk<'t> {
    /// Prepares scans with this many conditions on the columns of the index.
    pub fn new(table: &'t Table, snapshot: &'t Latest, conditions: i32) -> Self {
        // SAFETY: table and snapshot live as long as 't.
        unsafe {
            #[cfg(not(feature = "pg18"))]
            let scan = pg_sys::index_beginscan(table.heap, table.index, snapshot.0, conditions, 0);
            #[cfg(feature = "pg18")]
            let scan = pg_sys::index_beginscan(
                table.heap,
                table.index,
                snapshot.0,
                std::ptr::null_mut(),
                conditions,
                0,
            );
            let slot = pg_sys::table_slot_create(table.heap, std::ptr::null_mut());
            Walk {
                scan,
                slot,
                snapshot,
                table,
            }
        }
    }

    /// Starts over with these conditions, as many as the walk was made for.
    pub fn seek(&mut self, conditions: &mut [pg_sys::ScanKeyData]) {
        // SAFETY: the scan is open; index_rescan copies the conditions.
        unsafe {
            pg_sys::ExecClearTuple(self.slot);
            pg_sys::index_rescan(
                self.scan,
                conditions.as_mut_ptr(),
                conditions.len() as i32,
                std::ptr::null_mut(),
                0,
            );
        }
    }

    /// Moves to the next row; false at the end.
    pub fn next(&mut self) -> bool {
        // SAFETY: seek has been called; the slot is of the table's kind.
        unsafe {
            pg_sys::index_getnext_slot(
                self.scan,
                pg_sys::ScanDirection::ForwardScanDirection,
                self.slot,
            )
        }
    }

    /// A column of the row, counted from 1; `None` is NULL. A by-reference datum lives until the
    /// scan moves.
    pub fn column(&self, number: i32) -> Option<Datum> {
        // SAFETY: next has returned true, so the slot is full; the number is one of the table's
        // columns.
        unsafe { column_of(self.slot, number) }
    }

    /// Locks the row to the end of the transaction; false when another transaction holds it or has
    /// changed it.
    pub fn lock_row(&mut self) -> bool {
        let mut failure = pg_sys::TM_FailureData::default();
        // SAFETY: the slot is full; its place is copied, because the slot is filled anew. The
        // boundary turns errors into unwinding.
        unsafe {
            let Some(lock) = (*self.table.heap)
                .rd_tableam
                .as_ref()
                .and_then(|am| am.tuple_lock)
            else {
                return false;
            };
            let mut place = (*self.slot).tts_tid;
            let command = pg_sys::GetCurrentCommandId(false);
            let result = pg_guard_ffi_boundary(|| {
                lock(
                    self.table.heap,
                    &mut place,
                    self.snapshot.0,
                    self.slot,
                    command,
                    pg_sys::LockTupleMode::LockTupleExclusive,
                    pg_sys::LockWaitPolicy::LockWaitSkip,
                    0,
                    &mut failure,
                )
            });
            result == pg_sys::TM_Result::TM_Ok
        }
    }

    /// All columns of the row, copied into the current memory context and fetched from TOAST.
    pub fn row(&self) -> Vec<Option<Datum>> {
        // SAFETY: the slot is full, and its table is locked.
        unsafe { insert::copy_of(self.slot) }
    }

    pub(super) fn slot(&self) -> *mut pg_sys::TupleTableSlot {
        self.slot
    }
}

impl Drop for Walk<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // SAFETY: the scan and the slot were made in new, and nothing else uses them.
        unsafe {
            pg_sys::index_endscan(self.scan);
            pg_sys::ExecDropSingleTupleTableSlot(self.slot);
        }
    }
}

/// # Safety
/// The slot is full and has that column.
unsafe fn column_of(slot: *mut pg_sys::TupleTableSlot, number: i32) -> Option<Datum> {
    debug_assert!(number >= 1);
    // SAFETY: as the caller's.
    unsafe {
        if i32::from((*slot).tts_nvalid) < number {
            pg_sys::slot_getsomeattrs_int(slot, number);
        }
        let i = number as usize - 1;
        (!*(*slot).tts_isnull.add(i)).then(|| *(*slot).tts_values.add(i))
    }
}

/// One condition of a scan: the column of the index counted from 1, the strategy of the btree, the
/// comparison function and the value. Text is compared by the collation "C".
pub fn condition(column: i16, strategy: u32, function: u32, value: Datum) -> pg_sys::ScanKeyData {
    // SAFETY: ScanKeyInit fills the zeroed condition.
    unsafe {
        let mut key: pg_sys::ScanKeyData = std::mem::zeroed();
        pg_sys::ScanKeyInit(&mut key, column, strategy as u16, function.into(), value);
        key
    }
}

/// A condition that the column is NULL, or that it is not.
pub fn null_condition(column: i16, is_null: bool) -> pg_sys::ScanKeyData {
    let search = if is_null {
        pg_sys::SK_SEARCHNULL
    } else {
        pg_sys::SK_SEARCHNOTNULL
    };
    // SAFETY: ScanKeyEntryInitialize fills the zeroed condition; a search for NULL has no function.
    unsafe {
        let mut key: pg_sys::ScanKeyData = std::mem::zeroed();
        pg_sys::ScanKeyEntryInitialize(
            &mut key,
            (pg_sys::SK_ISNULL | search) as i32,
            column,
            0,
            pg_sys::InvalidOid,
            pg_sys::InvalidOid,
            pg_sys::InvalidOid,
            Datum::from(0),
        );
        key
    }
}
