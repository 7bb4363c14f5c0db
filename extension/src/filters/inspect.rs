//! Describes the filters for the view idem.filters.

use super::build::MOST_FALSE_POSITIVES;
use super::memory::{self, Filters, filters};
use super::slice::slot_and_tag;
use crate::errors::Result;
use crate::pg::is_standby;
use crate::ring;
use crate::shared;
use idem_core::filter::{Description, Status};
use pgrx::pg_sys;

/// The filter of a slice, or the reason why it has none.
pub struct FilterState {
    pub ring: usize,
    pub slice: i16,
    /// `complete`, `building` or `none`. Claims read the slice unless it is `complete`.
    pub status: &'static str,
    /// Why the filter is not complete, or not good enough.
    pub reason: Option<&'static str>,
    /// Whether a filter is being built for the slice: the first one or a larger one.
    pub is_being_built: bool,
    /// What is known about a filter that is complete or being built.
    pub filter: Option<Description>,
}

/// Returns the state of each slice in which a claim can be, also while the database is being
/// restored.
pub fn filter_states() -> Result<Vec<FilterState>> {
    let rings = ring::reread()?;
    let mut states = Vec::new();
    for (number, ring) in rings.inbox.iter().enumerate() {
        for slice in ring.probed() {
            let found = filters().zip(slot_and_tag(ring, slice));
            let filter = found.and_then(|(filters, (slot, tag))| {
                let filter = filters.arena.describe(slot);
                filter.filter(|filter| filter.tag == tag)
            });
            let (status, reason) = match filter.map(|filter| filter.status) {
                Some(Status::Complete) => ("complete", filter.and_then(too_small)),
                Some(Status::Building) => ("building", Some(WAITS)),
                Some(Status::Invalid) => ("none", Some(INVALID)),
                Some(Status::None) | None => ("none", Some(reason(found.map(|(all, _)| all)))),
            };
            states.push(FilterState {
                ring: number,
                slice: slice.number,
                status,
                reason,
                is_being_built: filter
                    .is_some_and(|filter| filter.is_being_replaced || status == "building"),
                filter: filter.filter(|_| status != "none"),
            });
        }
    }
    Ok(states)
}

/// Returns the memory of the filters of a database.
pub fn bytes_of(database: pg_sys::Oid) -> u64 {
    let found = filters().zip(shared::number_of(database));
    found.map_or(0, |(filters, number)| {
        memory::slots_of_database(number)
            .filter_map(|slot| filters.arena.describe(slot))
            .map(|filter| filter.bytes)
            .sum()
    })
}

/// Returns why a complete filter is not good enough.
fn too_small(filter: Description) -> Option<&'static str> {
    match filter.is_being_replaced {
        true => Some(REPLACED),
        false => (filter.expected_false_positives > MOST_FALSE_POSITIVES).then_some(TOO_SMALL),
    }
}

const TOO_SMALL: &str =
    "it is too small; the worker builds a larger one beside it, if idem.filter_memory has room";
const REPLACED: &str = "it is too small; a larger one is being built beside it";
const WAITS: &str = "it waits for transactions that were writing to the slice";
const INVALID: &str = "another command than a claim inserted rows; the filter is built again";

/// Returns why a slice has no filter. `filters` is none if this database has no slots.
fn reason(filters: Option<Filters>) -> &'static str {
    match filters {
        _ if super::memory::filters().is_none() => "idem.filter_memory is 0",
        None => "too many databases use idem",
        _ if is_standby() => "filters are built after the promotion of this standby",
        Some(filters) if !filters.arena.has_room_for(1) => "idem.filter_memory is used up",
        Some(_) => {
            "the worker builds it, if a destination uses the ring and idem.filter_memory has room"
        }
    }
}
