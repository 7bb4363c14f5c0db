//! Checks that all functions with leases have in common.

use crate::errors::{Error, Result, invalid};
use crate::pg::ensure_writable;
use pgrx::datum::Interval;
use pgrx::pg_sys;
use std::ffi::CStr;

/// Converts a lease to microseconds. A lease lasts from 1 millisecond to 1 day. As in comparisons
/// of intervals in SQL, a day has 24 hours and a month 30 days.
pub fn microseconds(lease: Interval) -> Result<i64> {
    const DAY: i128 = 86_400_000_000;
    let microseconds = i128::from(lease.micros())
        + DAY * (i128::from(lease.days()) + 30 * i128::from(lease.months()));
    if !(1_000..=DAY).contains(&microseconds) {
        return invalid(
            format!("lease is {:.3} seconds", microseconds as f64 / 1e6),
            "It must be between 1 millisecond and 1 day.",
        );
    }
    Ok(microseconds as i64)
}

/// Fails with 25006 if the transaction cannot write, and with 25000 unless it is READ COMMITTED: a
/// part of each function is SQL, which must see the latest committed state.
pub fn check_transaction(function: &CStr) -> Result<()> {
    ensure_writable(function);
    // SAFETY: reads a variable of the transaction.
    if unsafe { pg_sys::XactIsoLevel } >= pg_sys::XACT_REPEATABLE_READ as i32 {
        return Err(Error::NeedsReadCommitted {
            function: function.to_string_lossy().into_owned(),
        });
    }
    Ok(())
}
