//! Completes a leased message: the lease becomes a claim with its effects, in one transaction with
//! the caller's other writes.

use super::check::delete_pending;
use super::identity::Identity;
use super::row::{LeaseState, State};
use super::tables;
use crate::claim::{Outcome, claim_leased};
use crate::destination::find;
use crate::effects::record;
use crate::errors::{Error, Result};
use crate::pg::{self, Hold, Lookup};
use crate::ring::{self, Rings};
use idem_core::{EffectSpec, MessageId};
use uuid::Uuid;

/// Completes a message and returns the message ids of the effects. An expired lease can be
/// completed as long as no other consumer has leased or claimed the message. Fails with 55000 if
/// the lease is lost, and with 55P03 if another transaction is claiming the message.
pub fn complete(
    id: MessageId,
    name: &str,
    token: i64,
    effects: &[EffectSpec],
) -> Result<Vec<Uuid>> {
    let lost = || Error::LeaseLost {
        destination: name.to_owned(),
    };
    let rings = ring::enter()?;
    let destination = find(name)?.ok_or_else(lost)?;
    let identity = Identity {
        id,
        destination,
        name,
    };
    let table = tables::current(&rings)?;
    let mut row = Lookup::new(&table, 2);
    if row.hold(&mut identity.keys(), true) != Hold::Held {
        return Err(lost());
    }
    identity.check_pending(&row)?;
    let state = State::read(&row);
    if state.lease != LeaseState::Leased || state.token != token {
        return Err(lost());
    }
    // A claim in progress began after the lease expired. It will wait for the row that this
    // transaction has locked, so waiting for the claim would be a deadlock.
    match claim_leased(id, name)? {
        Outcome::Claimed { .. } => (),
        Outcome::InProgress => {
            return Err(Error::ClaimInProgress {
                destination: name.to_owned(),
            });
        }
        _ => return Err(lost()),
    }
    delete_pending(&mut row);
    record(id, name, effects)
}

/// Fails with 55000 unless this token holds the lease now. No other lease on the message can begin
/// until the end of the transaction.
pub fn ensure_leased(identity: &Identity, rings: &Rings, token: i64) -> Result<()> {
    let lost = || Error::LeaseLost {
        destination: identity.name.to_owned(),
    };
    let table = tables::current(rings)?;
    let mut row = Lookup::new(&table, 2);
    if row.hold(&mut identity.keys(), true) != Hold::Held {
        return Err(lost());
    }
    identity.check_pending(&row)?;
    let state = State::read(&row);
    if state.lease == LeaseState::Leased && state.token == token && state.due_at > pg::clock() {
        return Ok(());
    }
    Err(lost())
}
