//! Forgets a message: its claim, and its external calls with what was recorded as their results.
//! The next execution of the message begins as the first one did.
//!
//! The claim is deleted from each slice, again and again until nothing is deleted and the slices
//! are the same as before: while a ring opens a segment or a slice, a claim has two rows. Until it
//! has deleted a row, it waits for a claim in progress. Later such a claim is a new one, or its
//! claimer loses and waits for this transaction.

use crate::claim::own_claim;
use crate::claim_row::column;
use crate::destination::Destination;
use crate::errors::{Error, Result};
use crate::identity::Identity;
use crate::pause::pause_point;
use crate::pg::{Found, FoundIn, Hold, Lookup, Table, find_in, look_again};
use crate::ring::{self, Rings};
use crate::slices::tables_of;
use idem_core::MessageId;
use pgrx::pg_sys;
use std::borrow::Cow;

/// Returns whether there was a claim. Without a claim the external calls are kept, because they
/// belong to a message that is being processed. Fails with 55000 if this transaction made the
/// claim.
pub fn forget(id: MessageId, destination: &str) -> Result<bool> {
    let rings = ring::enter()?;
    let Some(identity) = Identity::find(id, destination)? else {
        return Ok(false);
    };
    // Look for the own claim before waiting for another claimer, which may wait for this
    // transaction. A transaction must undo its own claim by a rollback to a savepoint, which also
    // removes the effects of the claim.
    if own_claim(&identity, &rings)?.is_some() {
        return Err(Error::ForgetsOwnClaim);
    }
    let destination = &identity.destination;
    let current = destination.ring(&rings).current().table;
    let kind = Rings::inbox_slices;
    let is_forgotten = delete_from_slices(destination, &rings, kind, |slice, is_deleted| {
        let is_found = delete_claim(slice, &identity, is_deleted)?;
        if slice == current {
            pause_point("forget: after current");
        }
        Ok(is_found)
    })?;
    if is_forgotten {
        let kind = Rings::journal_slices;
        delete_from_slices(destination, &rings, kind, |slice, _| {
            Ok(delete_events(slice, &identity))
        })?;
    }
    Ok(is_forgotten)
}

/// Deletes the rows of a message from every slice in which they can be. `delete` deletes them from
/// one slice and returns whether there was one; its second argument is whether an earlier call has
/// deleted one. Returns whether a row was deleted.
fn delete_from_slices(
    destination: &Destination,
    entered: &Rings,
    kind: impl Fn(&Rings) -> Cow<Rings>,
    mut delete: impl FnMut(pg_sys::Oid, bool) -> Result<bool>,
) -> Result<bool> {
    let mut any = false;
    let mut slices = tables_of(destination, &kind(entered));
    loop {
        let mut is_deleted = false;
        for &slice in &slices {
            is_deleted |= delete(slice, any | is_deleted)?;
        }
        any |= is_deleted;
        // While a ring opens, a row is in two slices. The ring may have begun to open since this
        // transaction entered it, and a row can be written after the look into its first slice and
        // before the look into the second one. So look again until nothing changes.
        let latest = tables_of(destination, &kind(&ring::reread()?));
        if !is_deleted && latest == slices {
            return Ok(any);
        }
        slices = latest;
    }
}

/// Deletes the claim from one slice. Returns whether the slice had the claim.
///
/// Waits for a claim in progress, unless its row is deleted again. If `is_deleted` is true, this
/// transaction has deleted a claim of the message. Then a claim in progress is a later one, or its
/// claimer is about to lose and will wait for this transaction. So this function does not wait for
/// a row that is being inserted.
fn delete_claim(slice: pg_sys::Oid, identity: &Identity, is_deleted: bool) -> Result<bool> {
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

/// Deletes the events of the external calls from one slice. Returns whether the slice had one.
/// Waits for transactions that are recording one.
fn delete_events(slice: pg_sys::Oid, identity: &Identity) -> bool {
    let table = Table::for_writing(slice);
    let mut lookup = Lookup::insert_only(&table, 2);
    let mut is_deleted = false;
    look_again(|| {
        lookup.seek(&mut identity.keys());
        loop {
            match lookup.next() {
                Found::Nothing => return Some(is_deleted),
                Found::Row => {
                    if lookup.hold_found(true)? == Hold::Held {
                        lookup.delete();
                        is_deleted = true;
                    }
                    return None;
                }
                Found::InProgress(writer) if writer.retracts() => (),
                Found::InProgress(writer) => {
                    lookup.seek(&mut identity.keys());
                    writer.wait();
                    return None;
                }
            }
        }
    })
}
