//! The filter of one slice.

use super::memory::{Filters, filters, slot_of};
use crate::identity::Identity;
use crate::ring::{Ring, Slice};
use idem_core::filter::{ClaimHash, Tag};

/// The filter of a slice. The slice may have no filter, or another filter in the same slot: then it
/// excludes nothing.
#[derive(Clone, Copy)]
pub struct SliceFilter {
    filters: Filters,
    slot: usize,
    tag: Tag,
}

impl SliceFilter {
    /// Returns `None` if the slices of this ring have no filters, or if there is no memory.
    pub fn of(ring: &Ring, slice: Slice) -> Option<Self> {
        let (slot, tag) = slot_and_tag(ring, slice)?;
        Some(SliceFilter {
            filters: filters()?,
            slot,
            tag,
        })
    }

    /// Returns whether the claim is certainly not in the slice.
    pub fn excludes(&self, hash: ClaimHash) -> bool {
        !self.filters.arena.may_have(self.slot, self.tag, hash)
    }

    /// Counts a claim that was looked up and was not in the slice.
    pub fn count_false_positive(&self) {
        self.filters.arena.count_false_positive(self.slot, self.tag);
    }

    /// Counts claims that were looked up and were not in the slice.
    pub fn count_look_ups(&self, look_ups: u64) {
        self.filters
            .arena
            .count_look_ups(self.slot, self.tag, look_ups);
    }

    /// Adds a claim before it is inserted into the slice, which the caller has locked for writing.
    /// Returns true for at most one open transaction, and only if the claim was not in the slice.
    /// This is also true when a filter is built again: the new filter is complete only after the
    /// transactions have ended that wrote to the slice before.
    pub fn add(&self, hash: ClaimHash) -> bool {
        self.filters.arena.add(self.slot, self.tag, hash)
    }
}

/// Returns the slot of the filter of a slice, and what it must describe.
pub fn slot_and_tag(ring: &Ring, slice: Slice) -> Option<(usize, Tag)> {
    let number = usize::try_from(slice.number).ok()?;
    let tag = Tag {
        table: slice.table.to_u32(),
        incarnation: slice.opened as u64,
    };
    Some((slot_of(ring.filtered?, number)?, tag))
}

/// Hashes claims with the seed of this server.
#[derive(Clone, Copy)]
pub struct ClaimHashes(Option<u64>);

impl ClaimHashes {
    pub fn new() -> Self {
        ClaimHashes(filters().map(|filters| filters.seed))
    }

    /// Returns `None` if there are no filters.
    pub fn of(&self, identity: &Identity) -> Option<ClaimHash> {
        let hash = |seed| ClaimHash::new(seed, &identity.id.key, identity.destination.id);
        self.0.map(hash)
    }
}
