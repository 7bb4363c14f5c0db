//! Reads every row version of a table.

use super::Table;
use pgrx::pg_sys;
use pgrx::pg_sys::Datum;

/// Calls `visit` for every row version of a table, with its columns, also for versions that are
/// deleted or not committed. A version that is inserted during the scan may be omitted. No column
/// is NULL that the table does not allow to be NULL.
pub fn for_each_version(table: &Table, mut visit: impl FnMut(&dyn Fn(i32) -> Option<Datum>)) {
    // SAFETY: the table is open. A column points into the row, which stays pinned until the scan
    // moves. SnapshotAnyData is a constant of PostgreSQL.
    unsafe {
        let every = &raw mut pg_sys::SnapshotAnyData;
        let none = std::ptr::null_mut();
        let scan = pg_sys::table_beginscan_strat(table.heap, every, 0, none, true, true);
        let slot = pg_sys::table_slot_create(table.heap, std::ptr::null_mut());
        let forward = pg_sys::ScanDirection::ForwardScanDirection;
        while pg_sys::table_scan_getnextslot(scan, forward, slot) {
            pgrx::check_for_interrupts!();
            visit(&|number| {
                let mut is_null = false;
                let value = pg_sys::slot_getattr(slot, number, &mut is_null);
                (!is_null).then_some(value)
            });
        }
        pg_sys::ExecDropSingleTupleTableSlot(slot);
        pg_sys::table_endscan(scan);
    }
}

/// Returns the number of rows that the planner assumes for a table. `widths` are the bytes of each
/// column, which are used while the table has no statistics.
pub fn estimated_rows<const COLUMNS: usize>(table: &Table, widths: [i32; COLUMNS]) -> u64 {
    let (mut pages, mut rows, mut visible) = (0, 0.0, 0.0);
    // PostgreSQL counts columns from 1, and computes a width that is 0.
    let mut by_column = [0; pg_sys::MaxHeapAttributeNumber as usize + 1];
    by_column[1..=COLUMNS].copy_from_slice(&widths);
    // SAFETY: the table is open, and has no more columns than the array has elements.
    unsafe {
        let widths = by_column.as_mut_ptr();
        pg_sys::estimate_rel_size(table.heap, widths, &mut pages, &mut rows, &mut visible);
    }
    rows as u64
}
