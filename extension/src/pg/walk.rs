//! Ordered index scans with one snapshot. A found row can be locked without waiting.

use super::{Table, insert, routine};
use pgrx::pg_sys;
use pgrx::pg_sys::Datum;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;

/// A snapshot of the latest state. It stays registered until this value is dropped. All scans that
/// use it see the same state.
pub struct Latest(pg_sys::Snapshot);

impl Latest {
    pub fn take() -> Self {
        // SAFETY: a transaction is open. After CommandCounterIncrement the snapshot sees the rows
        // that this command has written.
        unsafe {
            pg_sys::CommandCounterIncrement();
            Latest(pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot()))
        }
    }
}

impl Drop for Latest {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: `take` registered the snapshot, and no scan uses it any longer.
            unsafe { pg_sys::UnregisterSnapshot(self.0) };
        }
    }
}

/// A scan of a table in the order of its index.
pub struct Walk<'t> {
    scan: pg_sys::IndexScanDesc,
    slot: *mut pg_sys::TupleTableSlot,
    snapshot: &'t Latest,
    table: &'t Table,
}

impl<'t> Walk<'t> {
    /// Prepares scans with this number of conditions on the columns of the index.
    pub fn new(table: &'t Table, snapshot: &'t Latest, conditions: i32) -> Self {
        // SAFETY: table and snapshot live as long as 't.
        unsafe {
            let scan = table.begin_scan(snapshot.0, conditions);
            let slot = pg_sys::table_slot_create(table.heap, std::ptr::null_mut());
            Walk {
                scan,
                slot,
                snapshot,
                table,
            }
        }
    }

    /// Starts a scan with these conditions. Their number must be the number given to `new`.
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

    /// Moves to the next row. Returns false at the end.
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

    /// Returns a column of the row, counted from 1; `None` is NULL. A by-reference datum is valid
    /// until the scan moves.
    pub fn column(&self, number: i32) -> Option<Datum> {
        // SAFETY: next has returned true, so the slot holds a row, and the row has this column.
        unsafe { column_of(self.slot, number) }
    }

    /// Locks the row until the end of the transaction. Returns false if another transaction has
    /// locked or changed the row.
    pub fn lock_row(&mut self) -> bool {
        let mut failure = pg_sys::TM_FailureData::default();
        // SAFETY: the slot holds a row. Its TID is copied, because the lock stores another row in
        // the slot. The boundary turns PostgreSQL errors into Rust panics.
        unsafe {
            let lock = routine(self.table.heap, |am| am.tuple_lock);
            let mut tid = (*self.slot).tts_tid;
            let command = pg_sys::GetCurrentCommandId(false);
            let result = pg_guard_ffi_boundary(|| {
                lock(
                    self.table.heap,
                    &mut tid,
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

    /// Returns all columns of the row, copied into the current memory context and fetched from
    /// TOAST.
    pub fn row(&self) -> Vec<Option<Datum>> {
        // SAFETY: the slot holds a row, and its table is locked.
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
        // SAFETY: `new` created the scan and the slot, and no other code uses them.
        unsafe {
            pg_sys::index_endscan(self.scan);
            pg_sys::ExecDropSingleTupleTableSlot(self.slot);
        }
    }
}

/// # Safety
/// The slot holds a row, and the row has this column.
unsafe fn column_of(slot: *mut pg_sys::TupleTableSlot, number: i32) -> Option<Datum> {
    debug_assert!(number >= 1);
    // SAFETY: guaranteed by the caller.
    unsafe {
        if i32::from((*slot).tts_nvalid) < number {
            pg_sys::slot_getsomeattrs_int(slot, number);
        }
        let i = number as usize - 1;
        (!*(*slot).tts_isnull.add(i)).then(|| *(*slot).tts_values.add(i))
    }
}

/// Returns a condition of a scan: the column of the index counted from 1, the btree strategy, the
/// comparison function and the value. Text is compared with the collation "C".
pub fn condition(column: i16, strategy: u32, function: u32, value: Datum) -> pg_sys::ScanKeyData {
    // SAFETY: ScanKeyInit fills the zeroed condition.
    unsafe {
        let mut key: pg_sys::ScanKeyData = std::mem::zeroed();
        pg_sys::ScanKeyInit(&mut key, column, strategy as u16, function.into(), value);
        key
    }
}

/// Returns the condition that the column of the index is equal to the value.
pub fn equals(column: i16, function: u32, value: Datum) -> pg_sys::ScanKeyData {
    condition(column, pg_sys::BTEqualStrategyNumber, function, value)
}

/// Returns the condition that the column is NULL, or that it is not NULL.
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
