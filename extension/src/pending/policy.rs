//! Reads the maximum number of attempts of a destination.

use crate::destination::Destination;
use crate::errors::Result;
use crate::pg::{self, Lookup, Table};
use idem_core::limits::MAX_ATTEMPTS;
use pgrx::pg_sys;

/// Returns the maximum number of attempts for a message of the destination.
pub fn max_attempts(destination: &Destination) -> Result<i32> {
    let table = Table::for_reading(pg::relation(c"retry_policy")?);
    if table.is_empty() {
        return Ok(MAX_ATTEMPTS);
    }
    let mut policy = Lookup::new(&table, 1);
    let key = pg::equals(1, pg_sys::F_INT4EQ, destination.id.into());
    if !policy.find_existing(&mut [key]) {
        return Ok(MAX_ATTEMPTS);
    }
    Ok(policy.column(2).map_or(MAX_ATTEMPTS, |d| d.value() as i32))
}
