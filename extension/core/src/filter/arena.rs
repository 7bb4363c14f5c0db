//! A fixed memory for the filters of many slices, which all processes share.
//!
//! Each slice has a [`Slot`], which describes its filter and has a fixed place. The lines of a
//! filter are in [`Chunk`]s. A filter with more than one chunk has another chunk that lists them,
//! so it needs no contiguous memory.
//!
//! # What each process may do
//!
//! One process at a time prepares, completes or removes the filters of a database; the caller
//! ensures this with a lock. Every process may look claims up, add claims and invalidate a filter
//! at any time.
//!
//! # When a filter is used
//!
//! The state of a slot has a number that grows with every change. A reader loads the state, reads
//! the line, and loads the state again. If the state has changed, the line may belong to another
//! filter by now, so the claim may be here. A writer that adds a claim looks again only to return
//! whether it is the first. If its line belongs to another filter by now, the cleared bits only add
//! false positives. If its line is in a list of chunks by now, it clears bits of [`Entry`] values,
//! which detect this.

use super::{ClaimHash, Line, WORDS, false_positives, lines_for};
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
    fence,
};

/// The number of lines of a chunk.
const CHUNK_LINES: usize = 1024;
/// The size of a chunk in bytes.
pub const CHUNK_BYTES: usize = CHUNK_LINES * super::LINE_BYTES;
/// The largest number of chunks that the first chunk of a filter can list.
const MAX_CHUNKS: u64 = (CHUNK_LINES * WORDS) as u64;
/// The bits a claim of a filter, the best first. A filter gets the first size for which there is
/// memory.
const BITS_PER_CLAIM: [u64; 4] = [16, 12, 10, 8];

/// The part of the state that says what a filter can be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// There is no filter.
    None,
    /// Claims are being added. The filter excludes nothing.
    Building,
    /// Every claim of the slice is in the filter.
    Complete,
    /// Rows that are not in the filter have arrived. The filter excludes nothing.
    Invalid,
}

const STATUS_BITS: u32 = 2;

impl Status {
    fn of(state: u64) -> Self {
        match state & 3 {
            0 => Status::None,
            1 => Status::Building,
            2 => Status::Complete,
            _ => Status::Invalid,
        }
    }

    /// Returns the next state after `state` with this status.
    fn after(self, state: u64) -> u64 {
        let number = (state >> STATUS_BITS).wrapping_add(1);
        (number << STATUS_BITS) | self as u64
    }
}

/// What a filter describes. A slice is used again after it was emptied, and `incarnation` is
/// another number then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    pub table: u32,
    pub incarnation: u64,
}

/// The description of the filter of one slice. Memory that is zero is a slot without a filter.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Slot {
    state: AtomicU64,
    incarnation: AtomicU64,
    lines: AtomicU64,
    table: AtomicU32,
    /// The number of the only chunk with lines, or of the chunk that lists those with lines.
    first: AtomicU32,
    /// The number of claims for which the filter was prepared.
    capacity: AtomicU64,
    bits_per_claim: AtomicU64,
    counters: Counters,
}

/// What was counted since the filter was prepared. The counters are written by many processes, so
/// they do not share a cache line with the description, which each look-up reads.
#[repr(C, align(64))]
#[derive(Debug, Default)]
struct Counters {
    look_ups: AtomicU64,
    false_positives: AtomicU64,
}

/// An entry of a list of chunks: the number of a chunk, and its complement. A late writer of an
/// earlier filter can only clear bits. Then the halves no longer match, and the entry stays
/// useless: claims of its chunk are not added, and may be in the slice for every reader.
struct Entry;

impl Entry {
    fn of(chunk: u32) -> u64 {
        u64::from(chunk) | u64::from(!chunk) << u32::BITS
    }

    fn chunk(entry: u64) -> Option<u32> {
        let chunk = entry as u32;
        (Self::of(chunk) == entry).then_some(chunk)
    }
}

/// A part of the memory for lines.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Chunk([Line; CHUNK_LINES]);

impl Chunk {
    fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        self.0.iter().flat_map(|line| &line.0)
    }

    /// Makes the lines exclude every claim.
    fn exclude_all(&self) {
        // A reader of the filter that had this chunk before must see that its state has changed, if
        // it sees one of the following changes of a line.
        fence(Release);
        self.0.iter().for_each(Line::exclude_all);
    }

    fn word(&self, number: usize) -> Option<&AtomicU64> {
        self.0.get(number / WORDS)?.0.get(number % WORDS)
    }
}

/// The memory. `owners` has one entry for each chunk: 0 if the chunk is free, otherwise the number
/// of its slot plus one.
#[derive(Debug, Clone, Copy)]
pub struct Arena<'a> {
    pub slots: &'a [Slot],
    pub owners: &'a [AtomicU32],
    pub chunks: &'a [Chunk],
}

/// A filter to which the claims of its slice are being added.
#[derive(Debug)]
pub struct Building<'a> {
    arena: Arena<'a>,
    slot: usize,
    state: u64,
}

/// What is known about the filter of a slot.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Description {
    pub tag: Tag,
    pub status: Status,
    /// The number of claims for which the filter was prepared.
    pub capacity: u64,
    /// The number of bits for each of these claims.
    pub bits_per_claim: u64,
    pub bytes: u64,
    /// The probability that the filter may have a claim that is not in the slice, from the bits of
    /// a part of its lines.
    pub expected_false_positives: f64,
    /// The number of look-ups since the filter was prepared, counted by [`Arena::count_look_ups`].
    pub look_ups: u64,
    /// The number of these look-ups that the filter did not exclude, although the claim was not in
    /// the slice.
    pub false_positives: u64,
}

impl<'a> Arena<'a> {
    /// Returns false if the claim is not in the slice. Returns true if it may be there: also if the
    /// slot has no complete filter with this tag.
    pub fn may_have(&self, slot: usize, tag: Tag, hash: ClaimHash) -> bool {
        let Some(slot) = self.slots.get(slot) else {
            return true;
        };
        let before = slot.state.load(Acquire);
        if Status::of(before) != Status::Complete || slot.tag() != tag {
            return true;
        }
        let may_have = self.line(slot, hash).is_none_or(|line| line.may_have(hash));
        // The loads of the line must not be reordered after the load of the state.
        fence(Acquire);
        may_have || slot.state.load(Relaxed) != before
    }

    /// Adds a claim to the filter of the slot if it has this tag, whether it is complete or not.
    /// Returns true if the filter is complete and this is the first call for the claim: the claim
    /// was not in the slice, and of several calls at most one returns true.
    pub fn add(&self, slot: usize, tag: Tag, hash: ClaimHash) -> bool {
        self.add_then(slot, tag, hash, || ())
    }

    /// Does what [`Arena::add`] does, and calls `then` before the state is read again. Tests change
    /// the filter in `then`.
    fn add_then(&self, slot: usize, tag: Tag, hash: ClaimHash, then: impl FnOnce()) -> bool {
        let Some(slot) = self.slots.get(slot) else {
            return false;
        };
        let before = slot.state.load(Acquire);
        let status = Status::of(before);
        if !matches!(status, Status::Building | Status::Complete) || slot.tag() != tag {
            return false;
        }
        let is_first = self.line(slot, hash).is_some_and(|line| line.add(hash));
        then();
        // The line may belong to another filter by now.
        fence(Acquire);
        is_first && status == Status::Complete && slot.state.load(Relaxed) == before
    }

    /// Prepares a filter for this many claims: from now on [`Arena::add`] adds claims to it. Frees
    /// the earlier filter of the slot. Returns false, and changes nothing, if there is not enough
    /// memory. The caller ensures that no other process prepares or removes a filter of this
    /// database.
    pub fn prepare(&self, slot: usize, tag: Tag, claims: u64) -> bool {
        let number = slot;
        let Some(slot) = self.slots.get(slot) else {
            return false;
        };
        let free = self.chunks_of(0) + self.chunks_of(owner_of(number));
        let sizes = BITS_PER_CLAIM.map(|bits| (bits, lines_for(claims, bits)));
        for (bits_per_claim, lines) in sizes {
            let count = lines.div_ceil(CHUNK_LINES as u64);
            if count > MAX_CHUNKS || chunks_for(count) > free {
                continue;
            }
            self.remove(number);
            // Another database may have taken chunks since they were counted.
            let Some(first) = self.take(number, count) else {
                return false;
            };
            slot.table.store(tag.table, Relaxed);
            slot.incarnation.store(tag.incarnation, Relaxed);
            slot.lines.store(lines, Relaxed);
            slot.first.store(first, Relaxed);
            slot.capacity.store(claims, Relaxed);
            slot.bits_per_claim.store(bits_per_claim, Relaxed);
            slot.counters.look_ups.store(0, Relaxed);
            slot.counters.false_positives.store(0, Relaxed);
            let state = Status::Building.after(slot.state.load(Relaxed));
            slot.state.store(state, Release);
            return true;
        }
        false
    }

    /// Returns the filter of a slot if it is prepared and not complete. The caller adds every claim
    /// that was in the slice when the filter was prepared, and then completes it.
    pub fn building(&self, slot: usize, tag: Tag) -> Option<Building<'a>> {
        let description = self.slots.get(slot)?;
        let state = description.state.load(Acquire);
        (Status::of(state) == Status::Building && description.tag() == tag).then_some(Building {
            arena: *self,
            slot,
            state,
        })
    }

    /// Removes the filter of a slot and frees its memory. The caller ensures that no other process
    /// prepares or removes a filter of this database.
    pub fn remove(&self, number: usize) {
        let Some(slot) = self.slots.get(number) else {
            return;
        };
        let state = slot.state.load(Relaxed);
        if Status::of(state) != Status::None {
            slot.state.store(Status::None.after(state), Relaxed);
        }
        // A reader that sees a later change of a line must see the change of the state.
        fence(Release);
        // Also the chunks of a builder that was terminated.
        for owner in self.owners {
            if owner.load(Relaxed) == owner_of(number) {
                owner.store(0, Release);
            }
        }
    }

    /// Makes the filter of a slot exclude nothing, if it describes this table. The caller calls
    /// this before it writes a row that it does not add to the filter.
    pub fn invalidate(&self, slot: usize, table: u32) {
        let Some(slot) = self.slots.get(slot) else {
            return;
        };
        let _ = slot.state.fetch_update(AcqRel, Acquire, |state| {
            let is_of_table = slot.table.load(Relaxed) == table;
            let has_filter = matches!(Status::of(state), Status::Building | Status::Complete);
            (is_of_table && has_filter).then(|| Status::Invalid.after(state))
        });
    }

    /// Describes the filter of a slot. Returns `None` if there is none.
    pub fn describe(&self, slot: usize) -> Option<Description> {
        let slot = self.slots.get(slot)?;
        let status = Status::of(slot.state.load(Acquire));
        (status != Status::None).then(|| Description {
            tag: slot.tag(),
            status,
            capacity: slot.capacity.load(Relaxed),
            bits_per_claim: slot.bits_per_claim.load(Relaxed),
            bytes: slot.lines.load(Relaxed) * super::LINE_BYTES as u64,
            expected_false_positives: self.expected_false_positives(slot),
            look_ups: slot.counters.look_ups.load(Relaxed),
            false_positives: slot.counters.false_positives.load(Relaxed),
        })
    }

    /// Counts look-ups of claims that are not in the slice, if the filter with this tag is
    /// complete.
    pub fn count_look_ups(&self, slot: usize, tag: Tag, look_ups: u64) {
        if let Some(slot) = self.complete(slot, tag) {
            slot.counters.look_ups.fetch_add(look_ups, Relaxed);
        }
    }

    /// Counts a look-up that the filter did not exclude, although the claim is not in the slice, if
    /// the filter with this tag is complete.
    pub fn count_false_positive(&self, slot: usize, tag: Tag) {
        if let Some(slot) = self.complete(slot, tag) {
            slot.counters.false_positives.fetch_add(1, Relaxed);
        }
    }

    fn complete(&self, slot: usize, tag: Tag) -> Option<&'a Slot> {
        let slot = self.slots.get(slot)?;
        let is_complete = Status::of(slot.state.load(Acquire)) == Status::Complete;
        (is_complete && slot.tag() == tag).then_some(slot)
    }

    /// Returns whether there is memory for a filter for this many claims. A filter that is there
    /// may have to be removed first.
    pub fn has_room_for(&self, claims: u64) -> bool {
        let least = BITS_PER_CLAIM.into_iter().min().unwrap_or(1);
        let count = lines_for(claims, least).div_ceil(CHUNK_LINES as u64);
        count <= MAX_CHUNKS && chunks_for(count) <= self.chunks_of(0)
    }

    /// Computes the probability of a false positive from the first lines: the hash of a claim
    /// selects each line with the same probability.
    fn expected_false_positives(&self, slot: &Slot) -> f64 {
        let lines = slot.lines.load(Relaxed).min(CHUNK_LINES as u64);
        false_positives((0..lines).filter_map(|line| self.line_at(slot, line)))
    }

    /// Returns the number of chunks with this owner.
    fn chunks_of(&self, owner: u32) -> u64 {
        let owners = self.owners.iter();
        owners.filter(|of| of.load(Relaxed) == owner).count() as u64
    }

    /// Takes `count` chunks for lines and, if they are more than one, a chunk that lists them.
    /// Makes the lines exclude every claim. Returns the number of the first chunk.
    fn take(&self, slot: usize, count: u64) -> Option<u32> {
        let mut free = self
            .owners
            .iter()
            .enumerate()
            .filter_map(|(number, owner)| {
                owner
                    .compare_exchange(0, owner_of(slot), AcqRel, Relaxed)
                    .ok()?;
                Some((number as u32, self.chunks.get(number)?))
            });
        let taken = free.next().and_then(|(first, chunk)| {
            if count == 1 {
                chunk.exclude_all();
                return Some(first);
            }
            // As in `exclude_all`.
            fence(Release);
            let mut entries = chunk.words();
            for _ in 0..count {
                let (number, chunk) = free.next()?;
                entries.next()?.store(Entry::of(number), Relaxed);
                chunk.exclude_all();
            }
            Some(first)
        });
        if taken.is_none() {
            self.remove(slot);
        }
        taken
    }

    fn line(&self, slot: &Slot, hash: ClaimHash) -> Option<&'a Line> {
        self.line_at(slot, hash.line(slot.lines.load(Relaxed)))
    }

    fn line_at(&self, slot: &Slot, number: u64) -> Option<&'a Line> {
        let number = number as usize;
        let first = self.chunks.get(slot.first.load(Relaxed) as usize)?;
        if slot.lines.load(Relaxed) <= CHUNK_LINES as u64 {
            return first.0.get(number);
        }
        let entry = first.word(number / CHUNK_LINES)?.load(Relaxed);
        let chunk = self.chunks.get(Entry::chunk(entry)? as usize)?;
        chunk.0.get(number % CHUNK_LINES)
    }
}

/// Returns the number of chunks of a filter with `count` chunks of lines.
fn chunks_for(count: u64) -> u64 {
    if count == 1 { 1 } else { count + 1 }
}

fn owner_of(slot: usize) -> u32 {
    slot as u32 + 1
}

impl Slot {
    fn tag(&self) -> Tag {
        Tag {
            table: self.table.load(Relaxed),
            incarnation: self.incarnation.load(Relaxed),
        }
    }
}

impl Building<'_> {
    /// Adds a claim of the slice.
    pub fn add(&self, hash: ClaimHash) {
        if let Some(slot) = self.arena.slots.get(self.slot)
            && let Some(line) = self.arena.line(slot, hash)
        {
            line.add(hash);
        }
    }

    /// Returns the number of the state, which is different for each preparation.
    pub fn number(&self) -> u64 {
        self.state
    }

    /// Publishes the filter: every claim of the slice was added. Returns false if rows have arrived
    /// in the meantime that may not be in the filter; it then stays invalid.
    pub fn complete(self) -> bool {
        let complete = Status::Complete.after(self.state);
        self.arena.slots.get(self.slot).is_some_and(|slot| {
            slot.state
                .compare_exchange(self.state, complete, AcqRel, Acquire)
                .is_ok()
        })
    }
}

#[cfg(test)]
mod tests;
