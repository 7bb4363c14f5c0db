//! The few rows of the state of the rings, read as they are now.

use pgrx::pg_sys;
use pgrx::pg_sys::Datum;

/// Visits every row of a small table with what gives its columns by number, `None` for NULL. Not through SPI: in REPEATABLE
/// READ and SERIALIZABLE that reads by the transaction's own, older snapshot. The caller has locked the table, or reads a
/// table that only DROP EXTENSION locks.
pub fn for_each_row(table: pg_sys::Oid, mut visit: impl FnMut(&dyn Fn(i32) -> Option<Datum>)) {
    // SAFETY: table_open raises unless it is a table; columns are read by their number in sql/10_inbox.sql and
    // sql/12_clock.sql, and point into the tuple, which lives until the next one is read.
    unsafe {
        let rel = pg_sys::table_open(table, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot());
        let scan = pg_sys::systable_beginscan(rel, pg_sys::InvalidOid, false, snapshot, 0, std::ptr::null_mut());
        loop {
            let tuple = pg_sys::systable_getnext(scan);
            if tuple.is_null() {
                break;
            }
            visit(&|number| {
                let mut isnull = false;
                let value = pg_sys::heap_getattr(tuple, number, (*rel).rd_att, &mut isnull);
                (!isnull).then_some(value)
            });
        }
        pg_sys::systable_endscan(scan);
        pg_sys::UnregisterSnapshot(snapshot);
        pg_sys::table_close(rel, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
    }
}

/// The microseconds of an interval, as PostgreSQL compares intervals.
pub fn interval(datum: Datum) -> i64 {
    // SAFETY: the caller names a column of type interval, which is passed by reference and aligned.
    let interval = unsafe { &*datum.cast_mut_ptr::<pg_sys::Interval>() };
    let days = i64::from(interval.month) * 30 + i64::from(interval.day);
    days * 86_400_000_000 + interval.time
}
