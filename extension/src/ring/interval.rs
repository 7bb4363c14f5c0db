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

/// Converts an array of intervals. Returns an empty list if an element is null.
///
/// # Safety
/// The datum is from a column of type interval[].
pub unsafe fn intervals(datum: Datum) -> Vec<i64> {
    // SAFETY: guaranteed by the caller. The elements have the length and the alignment of interval.
    unsafe {
        let array = pg_sys::pg_detoast_datum(datum.cast_mut_ptr()).cast::<pg_sys::ArrayType>();
        let (mut elements, mut nulls, mut count) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        pg_sys::deconstruct_array(
            array,
            pg_sys::INTERVALOID,
            size_of::<pg_sys::Interval>() as i32,
            false,
            pg_sys::TYPALIGN_DOUBLE as std::ffi::c_char,
            &mut elements,
            &mut nulls,
            &mut count,
        );
        (0..count as usize)
            .map(|n| (!*nulls.add(n)).then(|| interval(*elements.add(n))))
            .collect::<Option<_>>()
            .unwrap_or_default()
    }
}
