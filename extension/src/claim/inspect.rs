//! Looks up claims that were made before.

use super::{Claimed, own};
use crate::claim_row::column;
use crate::errors::{Error, Result};
use crate::filters::ClaimHashes;
use crate::identity::Identity;
use crate::inbox::claimed_at;
use crate::pg::Lookup;
use crate::ring::{self, Entered, Rings};
use crate::slices::{slices_of, slices_to_read};
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
pub fn own_claim(identity: &Identity, rings: &Rings) -> Result<Option<pg_sys::TimestampTz>> {
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
