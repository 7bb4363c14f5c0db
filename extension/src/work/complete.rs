//! Completing: the lease becomes a claim, with its effects, in one transaction with whatever else the caller does in it.

use super::identity::Identity;
use super::row::State;
use super::tables::Tables;
use crate::claim::{Outcome, claim_leased};
use crate::destination::find;
use crate::effects::record;
use crate::errors::{Error, Result};
use crate::pg::{self, Hold, Lookup, Table};
use crate::ring::{self, Rings};
use idem_core::{EffectSpec, MessageId};
use uuid::Uuid;

/// Answers the message ids of the effects. A lease that has run out can be completed as long as nobody else has begun.
pub fn complete(id: MessageId, name: &str, token: i64, effects: &[EffectSpec]) -> Result<Vec<Uuid>> {
    let lost = || Error::LeaseLost {
        destination: name.to_owned(),
    };
    let rings = ring::enter()?;
    let destination = find(name)?.ok_or_else(lost)?;
    let identity = Identity { id, destination, name };
    let work = Table::for_writing(Tables::enter(&rings)?.current);
    let mut row = Lookup::new(&work, 2);
    if row.hold(&mut identity.keys(), true) != Hold::Held {
        return Err(lost());
    }
    identity.check_work(&row)?;
    let state = State::read(&row);
    if !state.leased || state.token != token {
        return Err(lost());
    }
    // A claim in progress has come after the lease ran out, and will wait for the row that is held here: waiting for it
    // would be a deadlock.
    match claim_leased(id, name)? {
        Outcome::Claimed { .. } => (),
        Outcome::InProgress => {
            return Err(Error::ClaimInProgress {
                destination: name.to_owned(),
            });
        }
        _ => return Err(lost()),
    }
    row.delete();
    record(id, name, effects)
}

/// 55000 unless this token holds the lease now. Until the end of the transaction no other lease on the message begins.
pub fn ensure_leased(identity: &Identity, rings: &Rings, token: i64) -> Result<()> {
    let lost = || Error::LeaseLost {
        destination: identity.name.to_owned(),
    };
    let work = Table::for_writing(Tables::enter(rings)?.current);
    let mut row = Lookup::new(&work, 2);
    if row.hold(&mut identity.keys(), true) != Hold::Held {
        return Err(lost());
    }
    identity.check_work(&row)?;
    let state = State::read(&row);
    if state.leased && state.token == token && state.due_at > pg::clock() {
        return Ok(());
    }
    Err(lost())
}
