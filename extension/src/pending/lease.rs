//! The checks that all functions with leases share.

use super::row::{LeaseState, State, column};
use super::tables;
use crate::errors::{Error, Result, invalid};
use crate::identity::Identity;
use crate::pg::{self, Hold, Lookup, Table};
use crate::ring::Entered;
use pgrx::datum::Interval;

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

/// Locks the pending row of a message until the end of the transaction. Fails with 55000 unless the
/// token is that of the newest lease. The lease may have expired.
pub fn lock_leased<'t>(
    identity: &Identity,
    table: &'t Table,
    token: i64,
) -> Result<(Lookup<'t>, State)> {
    let lost = || Error::lease_lost(identity.name);
    let mut row = Lookup::new(table, 2);
    if row.hold(&mut identity.keys(), true) != Hold::Held {
        return Err(lost());
    }
    identity.check(&row, column::ID)?;
    let state = State::read(&row);
    if state.lease != LeaseState::Leased || state.token != token {
        return Err(lost());
    }
    Ok((row, state))
}

/// Fails with 55000 unless this token holds the lease now. No other lease on the message can begin
/// until the end of the transaction.
pub fn ensure_leased(identity: &Identity, rings: &Entered, token: i64) -> Result<()> {
    let table = tables::current(rings)?;
    let (_, state) = lock_leased(identity, &table, token)?;
    if state.due_at > pg::clock() {
        return Ok(());
    }
    Err(Error::lease_lost(identity.name))
}
