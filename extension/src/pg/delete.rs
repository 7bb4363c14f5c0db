//! Deletes a row without the executor.

use pgrx::pg_sys;

/// Deletes the row at `tid`, in the current transaction.
///
/// # Safety
/// The table is open for writing, the row is in it, and no other transaction is writing the row.
pub(super) unsafe fn delete_row(table: pg_sys::Relation, mut tid: pg_sys::ItemPointerData) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        // A row that this command inserted can be deleted only by the next command.
        pg_sys::CommandCounterIncrement();
        let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot());
        pg_sys::simple_table_tuple_delete(table, &mut tid, snapshot);
        pg_sys::UnregisterSnapshot(snapshot);
    }
}
