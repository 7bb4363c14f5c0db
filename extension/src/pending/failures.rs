//! The clock for the errors of pending messages, which store times in microseconds since 1970 (see
//! `idem_core::failure`).

use crate::pg;
use pgrx::pg_sys;

/// Returns the present time in microseconds since 1970.
pub fn now_unix() -> i64 {
    unix(pg::clock())
}

/// Converts PostgreSQL's microseconds since 2000 to microseconds since 1970.
fn unix(at: pg_sys::TimestampTz) -> i64 {
    const EPOCHS_APART: i64 = 946_684_800_000_000;
    at.saturating_add(EPOCHS_APART)
}
