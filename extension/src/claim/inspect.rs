//! Looks up claims that were made before.

use super::{Claimed, own};
use crate::errors::{Error, Result};
use crate::filters::ClaimHashes;
use crate::identity::Identity;
use crate::inbox::{claimed_at, column};
use crate::pause::pause_point;
use crate::pg::{FoundIn, Hold, Lookup, Table, find_in, look_again};
use crate::ring::{self, Entered, Rings};
use crate::slices::{delete_from_slices, slices_of, slices_to_read};
use idem_core::MessageId;
use pgrx::pg_sys;

/// Returns the identity and the time of the claim, if the claim is committed or this transaction
/// made it. Works on a standby.
pub fn claim_of<'a>(
    id: MessageId<'a>,
    name: &'a str,
) -> Result<Option<(Identity<'a>, pg_sys::TimestampTz)>> {
    let rings = ring::look()?;
    let Some(identity) = Identity::find(id, name)? else {
        return Ok(None);
    };
    let mut keys = identity.keys();
    let hash = ClaimHashes::new().of(&identity);
    let slices = slices_to_read(&identity.destination, &rings, Rings::inbox_slices)?;
    for slice in slices.iter().filter(|slice| !slice.excludes(hash)) {
        let mut lookup = Lookup::in_segments(slice.table());
        if lookup.find_existing(&mut keys) {
            identity.check(&lookup, column::ID)?;
            lookup.wait_for_flush();
            return Ok(Some((identity, claimed_at(&lookup))));
        }
    }
    Ok(None)
}

/// Finds the claim that this transaction made in an earlier function call. Fails with 55000 if it
/// has not claimed the message.
pub fn held<'a>(id: MessageId<'a>, name: &'a str, rings: &'a Entered) -> Result<Claimed<'a>> {
    let not_claimed = || Error::NotClaimed {
        destination: name.to_owned(),
    };
    let identity = Identity::find(id, name)?.ok_or_else(not_claimed)?;
    let claimed_at = match own::claimed_at(&identity) {
        Some(claimed_at) => claimed_at,
        None => own_claim(&identity, rings)?.ok_or_else(not_claimed)?,
    };
    Ok(Claimed {
        identity,
        rings,
        claimed_at,
    })
}

/// Returns the time of the claim that this transaction made, and `None` if it has not claimed the
/// message.
fn own_claim(identity: &Identity, rings: &Rings) -> Result<Option<pg_sys::TimestampTz>> {
    let mut keys = identity.keys();
    // Search the newest slice of the present ring first, because the claim is there unless the ring
    // has rotated since. The rings that the destination left follow, because this transaction may
    // have moved the destination after the claim.
    let hash = ClaimHashes::new().of(identity);
    let slices = slices_of(&identity.destination, rings);
    for slice in slices.iter().rev().filter(|slice| !slice.excludes(hash)) {
        let mut lookup = Lookup::in_segments(slice.table());
        if lookup.find_mine(&mut keys) {
            identity.check(&lookup, column::ID)?;
            return Ok(Some(claimed_at(&lookup)));
        }
    }
    Ok(None)
}

/// Deletes the claim from every slice. Returns whether there was a claim. Until it has deleted one,
/// it waits for a claim in progress. Fails with 55000 if this transaction made the claim.
pub fn forget(id: MessageId, name: &str) -> Result<bool> {
    let rings = ring::enter()?;
    let Some(identity) = Identity::find(id, name)? else {
        return Ok(false);
    };
    // Look for the own claim before waiting for another claimer, which may wait for this
    // transaction. A transaction must undo its own claim by a rollback to a savepoint, which also
    // removes the effects of the claim.
    if own_claim(&identity, &rings)?.is_some() {
        return Err(Error::ForgetsOwnClaim);
    }
    let current = identity.destination.ring(&rings).current().table;
    let kind = Rings::inbox_slices;
    delete_from_slices(&identity.destination, &rings, kind, |slice, is_deleted| {
        let forgotten = forget_in(slice, &identity, is_deleted)?;
        if slice == current {
            pause_point("forget: after current");
        }
        Ok(forgotten)
    })
}

/// Deletes the claim from one slice. Returns whether the slice had the claim.
///
/// Waits for a claim in progress, unless its row is deleted again. If `is_deleted` is true, this
/// transaction has deleted a claim of the message. Then a claim in progress is a later one, or its
/// claimer is about to lose and will wait for this transaction. So this function does not wait for
/// a row that is being inserted.
fn forget_in(slice: pg_sys::Oid, identity: &Identity, is_deleted: bool) -> Result<bool> {
    let table = Table::for_writing(slice);
    let mut lookup = Lookup::in_segments(&table);
    let held = look_again(|| match find_in([&mut lookup], &mut identity.keys()) {
        FoundIn::Nothing => Some(Hold::Nothing),
        FoundIn::Row(row) => row.hold_found(true),
        FoundIn::InProgress(writer) if writer.retracts() => Some(Hold::Nothing),
        FoundIn::InProgress(writer) if is_deleted && !writer.deletes() => Some(Hold::Nothing),
        FoundIn::InProgress(writer) => {
            writer.wait();
            None
        }
    });
    if held != Hold::Held {
        return Ok(false);
    }
    identity.check(&lookup, column::ID)?;
    lookup.delete();
    Ok(true)
}
