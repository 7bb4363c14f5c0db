//! Reads small tables in their latest committed state, regardless of the transaction's snapshot.
//!
//! The scan fetches every version of a row and tests its visibility itself: a scan with an ordinary
//! snapshot would take predicate locks in SERIALIZABLE.

use super::routine;
use pgrx::pg_sys;
use pgrx::pg_sys::Datum;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;

/// Calls `visit` for every row of a small table, with a function that returns a column by number,
/// `None` for NULL. The caller has locked the table, or only DROP EXTENSION locks it exclusively.
pub fn for_each_row(table: pg_sys::Oid, mut visit: impl FnMut(&dyn Fn(i32) -> Option<Datum>)) {
    // SAFETY: table_open raises an error unless the OID is a table; a column points into the row,
    // which lives until the scan moves. SnapshotAnyData is a constant of PostgreSQL.
    unsafe {
        let rel = pg_sys::table_open(table, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        let now = pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot());
        let every = &raw mut pg_sys::SnapshotAnyData;
        let scan = pg_sys::systable_beginscan(
            rel,
            pg_sys::InvalidOid,
            false,
            every,
            0,
            std::ptr::null_mut(),
        );
        loop {
            let row = pg_sys::systable_getnext(scan);
            if row.is_null() {
                break;
            }
            if is_visible(rel, (*scan).slot, now) {
                visit(&|number| {
                    let mut is_null = false;
                    let value = pg_sys::heap_getattr(row, number, (*rel).rd_att, &mut is_null);
                    (!is_null).then_some(value)
                });
            }
        }
        pg_sys::systable_endscan(scan);
        pg_sys::UnregisterSnapshot(now);
        pg_sys::table_close(rel, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
    }
}

/// Returns a column of the only row of a table. The type of the column must be passed by value.
pub fn latest(table: pg_sys::Oid, column: i32) -> Option<Datum> {
    let mut found = None;
    for_each_row(table, |value_of| found = value_of(column));
    found
}

/// Returns whether the snapshot sees the row version in the slot.
///
/// # Safety
/// The slot holds a version of a row of the table, and its page is pinned. The snapshot is valid.
pub(super) unsafe fn is_visible(
    table: pg_sys::Relation,
    slot: *mut pg_sys::TupleTableSlot,
    snapshot: pg_sys::Snapshot,
) -> bool {
    // SAFETY: guaranteed by the caller; the boundary turns PostgreSQL errors into Rust panics.
    unsafe {
        let satisfies = routine(table, |am| am.tuple_satisfies_snapshot);
        pg_guard_ffi_boundary(|| satisfies(table, slot, snapshot))
    }
}
