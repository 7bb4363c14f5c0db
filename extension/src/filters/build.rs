//! Builds the filters.
//!
//! 1. *Prepare*: a filter that excludes nothing. From now on each claimer adds its claim to the
//!    filter before it inserts the claim.
//! 2. *Wait* for the transactions that were writing to the slice: they may have inserted, or may be
//!    about to insert, claims that they have not added.
//! 3. *Scan* the slice and add every row version, and *complete* the filter. It replaces the filter
//!    that was in use until now.
//!
//! A lock lets one process of a database at a time do a step. The same steps build the filter of a
//! sealed slice and that of a slice that takes claims. Rows that other commands insert, such as
//! COPY, invalidate the filter before they exist: see [`invalidate`].

use super::memory::{self, Filters, filters};
use super::slice::slot_and_tag;
use crate::claim_row::{WIDTHS, column};
use crate::errors::Result;
use crate::pause::is_left_out;
use crate::pg::{self, Table, estimated_rows, for_each_version, is_standby};
use crate::ring::{self, Ring, Slice};
use idem_core::MessageId;
use idem_core::filter::{Building, CLAIMS_OF_CHUNK, ClaimHash, Description, Status};
use pgrx::pg_sys;
use pgrx::prelude::*;

/// A filter that passes more of the claims that are not in its slice is too small.
pub(super) const MOST_FALSE_POSITIVES: f64 = 0.01;

/// Does the next step for the slices of one ring: the newest slice first, because most duplicates
/// are young. Returns true if a step was done.
pub fn build_next(ring_number: usize) -> Result<bool> {
    let Some(filters) = filters() else {
        return Ok(false);
    };
    // A standby replays claims, and does not add them to a filter.
    if is_standby() {
        return Ok(false);
    }
    let rings = ring::look()?;
    let Some(ring) = rings.inbox.get(ring_number) else {
        return Ok(false);
    };
    let build_one = || {
        let probed = ring.probed();
        remove_others(&filters, ring_number, ring, &probed);
        let mut newest_first = probed.into_iter().rev();
        newest_first.any(|slice| build(&filters, ring, slice))
    };
    Ok(pg::try_with_exclusive_lock(ring::ring_table()?, build_one).unwrap_or_default())
}

/// Prepares the filter of the slice that this transaction opens, if the ring uses filters. No
/// claimer writes to the slice before the transaction commits, so the filter waits for none.
/// Returns false if there is no memory, or another process does a step.
pub fn prepare_opened(ring_number: usize) -> Result<bool> {
    let rings = ring::reread()?;
    let Some((filters, ring)) = filters().zip(rings.inbox.get(ring_number)) else {
        return Ok(false);
    };
    let current = slot_and_tag(ring, ring.current());
    let is_used = current.is_some_and(|(slot, _)| filters.arena.describe(slot).is_some());
    let Some(opened) = ring.filling().nth(1).filter(|_| is_used) else {
        return Ok(false);
    };
    // Other processes do not know before the commit that the slice needs a filter. With this lock
    // they do not remove it.
    Ok(pg::try_exclusive_lock(ring::ring_table()?)
        && prepare(&filters, ring, opened)
        // The first look at the fence lists the writers.
        && building(&filters, ring, opened).is_some_and(|of| has_ended(opened, &of)))
}

/// Removes the filters of slices in which no claim can be any more.
fn remove_others(filters: &Filters, ring_number: usize, ring: &Ring, probed: &[Slice]) {
    let needed = |slot, tag| {
        probed
            .iter()
            .any(|&slice| slot_and_tag(ring, slice) == Some((slot, tag)))
    };
    for slot in memory::slots_of(ring_number) {
        let filter = filters.arena.describe(slot);
        if filter.is_some_and(|filter| !needed(slot, filter.tag)) {
            filters.arena.remove(slot);
        }
    }
}

/// Does the next step for a slice. Returns false if its filter is good, waits, or has no memory
/// beside the one that is in use.
fn build(filters: &Filters, ring: &Ring, slice: Slice) -> bool {
    if let Some(building) = building(filters, ring, slice) {
        return has_ended(slice, &building) && fill(filters, slice.table, building);
    }
    prepare(filters, ring, slice)
}

fn building<'a>(filters: &Filters, ring: &Ring, slice: Slice) -> Option<Building<'a>> {
    let (slot, tag) = slot_and_tag(ring, slice)?;
    filters.arena.building(slot, tag)
}

/// Prepares a filter for a slice, unless it has a good one. Returns whether a filter was prepared.
fn prepare(filters: &Filters, ring: &Ring, slice: Slice) -> bool {
    let Some((slot, tag)) = slot_and_tag(ring, slice) else {
        return false;
    };
    let filter = filters.arena.describe(slot);
    let is_used = |filter: &Description| filter.tag == tag && filter.status == Status::Complete;
    let used = filter.filter(is_used);
    if used.is_some_and(|filter| filter.expected_false_positives <= MOST_FALSE_POSITIVES) {
        return false;
    }
    let claims = expected_claims(ring, slice);
    let least = used.map_or(0, |filter| filter.bytes);
    filters.arena.prepare(slot, tag, claims, least)
}

/// Returns the number of claims for which the filter of a slice is prepared. A slice that still
/// takes claims will probably have as many as the slice before it.
fn expected_claims(ring: &Ring, slice: Slice) -> u64 {
    let rows = |slice: Slice| estimated_rows(&Table::for_reading(slice.table), WIDTHS);
    let is_sealed = ring.sealed().contains(&slice);
    let expected = match is_sealed {
        true => rows(slice) * 11 / 10,
        false => (rows(slice) * 3 / 2)
            .max(rows(ring.current()))
            .max(rows(ring.newest_sealed())),
    };
    // The smallest filter fills one chunk.
    expected.max(CLAIMS_OF_CHUNK)
}

/// Returns whether the transactions have ended that were writing to the slice when the filter was
/// prepared.
fn has_ended(slice: Slice, building: &Building) -> bool {
    if is_left_out("filter: wait for writers") {
        return true;
    }
    let passed = Spi::get_one_with_args::<bool>(
        "SELECT idem.fence($1, $2, $3)",
        &[
            format!("filter of {}", slice.table).into(),
            format!("prepared {}", building.number()).into(),
            slice.table.into(),
        ],
    );
    match passed {
        Ok(passed) => passed.unwrap_or_default(),
        Err(e) => pgrx::error!("idem.fence: {e}"),
    }
}

/// Adds every row of the slice to the filter and completes it.
fn fill(filters: &Filters, slice: pg_sys::Oid, building: Building) -> bool {
    let table = Table::for_reading(slice);
    for_each_version(&table, |column| {
        let key = column(column::KEY);
        let destination = column(column::DESTINATION);
        if let (Some(key), Some(destination)) = (key, destination) {
            // SAFETY: the column is a uuid: 16 bytes, passed by reference.
            let key = MessageId::from_uuid(unsafe { *key.cast_mut_ptr::<[u8; 16]>() }).key;
            let destination = destination.value() as i32;
            building.add(ClaimHash::new(filters.seed, &key, destination));
        }
    });
    building.complete()
}

/// Makes the filter of this table exclude nothing, before a row exists that was not added to it.
pub fn invalidate(table: pg_sys::Oid) {
    let Some(filters) = filters() else {
        return;
    };
    for slot in memory::slots() {
        filters.arena.invalidate(slot, table.to_u32());
    }
}

/// Removes every filter of a database that no longer exists.
pub fn forget(database: usize) {
    if let Some(filters) = filters() {
        memory::slots_of_database(database).for_each(|slot| filters.arena.remove(slot));
    }
}
