//! Reads claims. All functions of this module work on a standby, except `forget`.

use super::{check_claim, identity_keys};
use crate::destination::{Destination, find};
use crate::errors::{Error, Result};
use crate::pg::{Hold, Lookup, Table};
use crate::ring::{self, Rings};
use idem_core::MessageId;
use pgrx::pg_sys;

/// Returns the destination and the time of the claim, if the claim is committed or this transaction
/// made it.
pub fn claim_of(id: &MessageId, name: &str) -> Result<Option<(Destination, pg_sys::TimestampTz)>> {
    let rings = ring::look()?;
    let Some(destination) = find(name)? else {
        return Ok(None);
    };
    let mut keys = identity_keys(&id.key, destination.id);
    for slice in slices_of(&destination, &rings) {
        let table = Table::for_reading(slice);
        let mut lookup = Lookup::insert_only(&table, 2);
        if lookup.find_settled(&mut keys) {
            check_claim(&lookup, id, name)?;
            lookup.rely();
            return Ok(Some((destination, claimed_at(&lookup))));
        }
    }
    Ok(None)
}

/// Returns the destination and the time of the claim, if this transaction made the claim of the
/// message. The caller must have entered the rings.
pub fn my_claim(
    id: &MessageId,
    name: &str,
    rings: &Rings,
) -> Result<Option<(Destination, pg_sys::TimestampTz)>> {
    let Some(destination) = find(name)? else {
        return Ok(None);
    };
    let mut keys = identity_keys(&id.key, destination.id);
    let ring = destination.ring(rings);
    // Search the newest slice first, because the claim is there unless the ring has rotated since.
    for slice in [ring.current()]
        .into_iter()
        .chain(ring.sealed().into_iter().rev())
    {
        let table = Table::for_reading(slice);
        let mut lookup = Lookup::insert_only(&table, 2);
        if lookup.find_mine(&mut keys) {
            check_claim(&lookup, id, name)?;
            return Ok(Some((destination, claimed_at(&lookup))));
        }
    }
    Ok(None)
}

fn claimed_at(claim: &Lookup) -> pg_sys::TimestampTz {
    claim.column(2).map_or(0, |d| d.value() as i64)
}

/// Deletes the claim from every slice. Returns whether there was a claim. Waits until a claim in
/// progress has ended.
pub fn forget(id: &MessageId, name: &str) -> Result<bool> {
    let rings = ring::enter()?;
    let Some(destination) = find(name)? else {
        return Ok(false);
    };
    let mut keys = identity_keys(&id.key, destination.id);
    let mut forgotten = false;
    for slice in slices_of(&destination, &rings) {
        let table = Table::for_writing(slice);
        let mut lookup = Lookup::insert_only(&table, 2);
        if lookup.hold(&mut keys, true) == Hold::Held {
            check_claim(&lookup, id, name)?;
            if lookup.is_mine() {
                // A transaction must undo its own claim by a rollback to a savepoint, which also
                // removes the effects of the claim.
                return Err(Error::ForgetsOwnClaim);
            }
            lookup.delete();
            forgotten = true;
        }
    }
    Ok(forgotten)
}

/// Returns every slice in which a row of this destination can be. Within each ring the oldest slice
/// comes first.
pub fn slices_of(destination: &Destination, rings: &Rings) -> Vec<pg_sys::Oid> {
    destination
        .left_rings(rings)
        .chain([destination.ring(rings)])
        .flat_map(|ring| ring.probed().collect::<Vec<_>>())
        .collect()
}
