//! Reads intervals from the tables of the rings.

use pgrx::pg_sys;
use pgrx::pg_sys::Datum;

/// Converts an interval to microseconds, as PostgreSQL does to compare intervals.
pub fn interval(datum: Datum) -> i64 {
    // SAFETY: the datum is from a column of type interval, which is passed by reference and
    // aligned.
    let interval = unsafe { &*datum.cast_mut_ptr::<pg_sys::Interval>() };
    let days = i64::from(interval.month) * 30 + i64::from(interval.day);
    days * 86_400_000_000 + interval.time
}
