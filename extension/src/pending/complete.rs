//! Completing: the lease becomes a claim, with its effects, in one transaction with whatever else
//! the caller does in it.

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

/// Answers the message ids of the effects. A lease that has run out can be completed as long as
/// nobody else has begun.
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
    // A claim in progress has come after the lease ran out, and will wait for the row that is held
    // here: waiting for it would be a deadlock.
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

/// 55000 unless this token holds the lease now. Until the end of the transaction no other lease on
/// the message begins.
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
