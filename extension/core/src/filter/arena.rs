//! A fixed memory for the filters of many slices, which all processes share.
//!
//! Each slice has a [`Slot`] with a fixed place, which describes its filter. A filter that has
//! become too small stays in use while a second one is built beside it. The lines of a filter are
//! in [`Chunk`]s. A filter with more than one chunk has another chunk that lists them, so it needs
//! no contiguous memory.
//!
//! # What each process may do
//!
//! One process at a time prepares, completes or removes the filters of a database; the caller
//! ensures this with a lock. Every process may look claims up, add claims and invalidate a filter
//! at any time.
//!
//! # When a filter is used
//!
//! The state of a filter has a number that grows with every change. A reader loads the state, reads
//! the line, and loads the state again. If the state has changed, the line may belong to another
//! filter by now, so the claim may be here. If both filters of a slot are complete, each of them
//! excludes the claims that it does not have.
//!
//! A writer adds its claim to both filters, and looks again only to return whether it is the first.
//! If its line belongs to another filter by now, the cleared bits only add false positives. If its
//! line is in a list of chunks by now, it clears bits of [`Entry`] values, which detect this.

use super::{ClaimHash, LINE_BYTES, Line, WORDS, false_positives, lines_for};
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
    fence,
};

/// The number of lines of a chunk.
const CHUNK_LINES: usize = 1024;
/// The size of a chunk in bytes.
pub const CHUNK_BYTES: usize = CHUNK_LINES * LINE_BYTES;
/// The largest number of chunks that the first chunk of a filter can list.
const MAX_CHUNKS: u64 = (CHUNK_LINES * WORDS) as u64;
/// The bits a claim of a filter, the best first. A filter gets the first size for which there is
/// memory.
const BITS_PER_CLAIM: [u64; 5] = [BEST_BITS, 16, 12, 10, 8];
/// The best size. A filter of this size leaves at least half of the memory free. It passes one in
/// ten thousand other claims, and each of these reads every segment of the slice. With 16 bits it
/// would be one in a thousand.
const BEST_BITS: u64 = 24;
/// The largest number of claims for which the best filter has one chunk.
pub const CLAIMS_OF_CHUNK: u64 = CHUNK_BYTES as u64 * 8 / BEST_BITS;

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

/// The filter of one slice, and the filter that will replace it. Memory that is zero is a slot
/// without a filter.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Slot {
    /// Both are in one cache line, which each look-up reads.
    filters: [Filter; FILTERS],
    /// Many processes write the counters, so these are in another cache line.
    figures: [Figures; FILTERS],
}

/// The number of filters of a slot.
const FILTERS: usize = 2;

/// What a look-up in a filter needs.
#[repr(C)]
#[derive(Debug, Default)]
struct Filter {
    state: AtomicU64,
    incarnation: AtomicU64,
    lines: AtomicU64,
    table: AtomicU32,
    /// The number of the only chunk with lines, or of the chunk that lists those with lines.
    first: AtomicU32,
}

/// What is known about a filter since it was prepared.
#[repr(C)]
#[derive(Debug, Default)]
struct Figures {
    bits_per_claim: AtomicU64,
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
/// of its filter plus one (see `Place`).
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
    place: Place,
    state: u64,
}

/// The place of a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    slot: usize,
    /// The number of the filter in its slot.
    number: usize,
}

impl Place {
    /// Returns the places of both filters of a slot.
    fn all(slot: usize) -> [Self; FILTERS] {
        std::array::from_fn(|number| Place { slot, number })
    }

    /// Returns the owner of the chunks of this filter.
    fn owner(self) -> u32 {
        (self.slot * FILTERS + self.number) as u32 + 1
    }

    fn other(self) -> Self {
        Place {
            number: 1 - self.number,
            ..self
        }
    }
}

/// What is known about the filter of a slot.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Description {
    pub tag: Tag,
    pub status: Status,
    /// The number of bits for each claim for which the filter was prepared.
    pub bits_per_claim: u64,
    /// Whether a larger filter is being built beside it.
    pub is_being_replaced: bool,
    /// The size, with that of the larger filter.
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
        let filters = self.slots.get(slot).map(|slot| slot.filters.iter());
        let mut filters = filters.into_iter().flatten();
        !filters.any(|filter| self.excludes(filter, tag, hash))
    }

    /// Returns whether the filter is complete, has this tag and does not have the claim.
    fn excludes(&self, filter: &Filter, tag: Tag, hash: ClaimHash) -> bool {
        let before = filter.state.load(Acquire);
        if Status::of(before) != Status::Complete || filter.tag() != tag {
            return false;
        }
        let excludes = self
            .line(filter, hash)
            .is_some_and(|line| !line.may_have(hash));
        // The loads of the line must not be reordered after the load of the state.
        fence(Acquire);
        excludes && filter.state.load(Relaxed) == before
    }

    /// Adds a claim to the filters of the slot that have this tag, whether they are complete or
    /// not. Returns true if one of them is complete and this is the first call for the claim: the
    /// claim was not in the slice, and of several calls at most one returns true.
    pub fn add(&self, slot: usize, tag: Tag, hash: ClaimHash) -> bool {
        self.add_then(slot, tag, hash, || ())
    }

    /// Does what [`Arena::add`] does, and calls `then` before the states are read again. Tests
    /// change the filters in `then`.
    fn add_then(&self, slot: usize, tag: Tag, hash: ClaimHash, then: impl FnOnce()) -> bool {
        let Some(slot) = self.slots.get(slot) else {
            return false;
        };
        let before = slot.states();
        let mut is_any_complete = false;
        let mut is_first = true;
        for (filter, &state) in slot.filters.iter().zip(&before) {
            let status = Status::of(state);
            if !matches!(status, Status::Building | Status::Complete) || filter.tag() != tag {
                continue;
            }
            let line = self.line(filter, hash);
            let is_first_here = line.is_some_and(|line| line.add(hash));
            if status == Status::Complete {
                is_any_complete = true;
                is_first &= is_first_here;
            }
        }
        then();
        // A line may belong to another filter by now. Another call for the same claim may find only
        // the new filter. If it was the first there, this call has read its change of the line, and
        // so it reads a new state here. Otherwise the other call returns false.
        fence(Acquire);
        is_any_complete && is_first && slot.states() == before
    }

    /// Prepares a filter for this many claims: from now on [`Arena::add`] adds claims to it. A
    /// complete filter with this tag stays in use. Every other filter of the slot is removed.
    /// Returns false if there is not enough memory for a filter with more than `least` bytes. The
    /// caller ensures that no other process prepares or removes a filter of this database.
    pub fn prepare(&self, slot: usize, tag: Tag, claims: u64, least: u64) -> bool {
        let complete = self.place(slot, tag, Status::Complete);
        let places = Place::all(slot);
        for place in places.into_iter().filter(|&place| Some(place) != complete) {
            self.remove_at(place);
        }
        let place = complete.map_or(places[0], Place::other);
        let (Some(filter), Some(figures)) = (self.filter(place), self.figures(place)) else {
            return false;
        };
        let free = self.free_chunks();
        let sizes = BITS_PER_CLAIM.map(|bits| (bits, lines_for(claims, bits)));
        for (bits_per_claim, lines) in sizes {
            let count = lines.div_ceil(CHUNK_LINES as u64);
            let is_larger = lines * LINE_BYTES as u64 > least;
            let most = match bits_per_claim {
                BEST_BITS => free.saturating_sub(self.chunks.len() as u64 / 2),
                _ => free,
            };
            if !is_larger || count > MAX_CHUNKS || chunks_for(count) > most {
                continue;
            }
            // Another database may have taken chunks since they were counted.
            let Some(first) = self.take(place, count) else {
                return false;
            };
            filter.table.store(tag.table, Relaxed);
            filter.incarnation.store(tag.incarnation, Relaxed);
            filter.lines.store(lines, Relaxed);
            filter.first.store(first, Relaxed);
            figures.bits_per_claim.store(bits_per_claim, Relaxed);
            figures.look_ups.store(0, Relaxed);
            figures.false_positives.store(0, Relaxed);
            let state = Status::Building.after(filter.state.load(Relaxed));
            filter.state.store(state, Release);
            return true;
        }
        false
    }

    /// Returns the filter of a slot if it is prepared and not complete. The caller adds every claim
    /// that was in the slice when the filter was prepared, and then completes it.
    pub fn building(&self, slot: usize, tag: Tag) -> Option<Building<'a>> {
        let place = self.place(slot, tag, Status::Building)?;
        let state = self.filter(place)?.state.load(Acquire);
        (Status::of(state) == Status::Building).then_some(Building {
            arena: *self,
            place,
            state,
        })
    }

    /// Removes the filters of a slot and frees their memory. The caller ensures that no other
    /// process prepares or removes a filter of this database.
    pub fn remove(&self, slot: usize) {
        for place in Place::all(slot) {
            self.remove_at(place);
        }
    }

    fn remove_at(&self, place: Place) {
        let Some(filter) = self.filter(place) else {
            return;
        };
        let state = filter.state.load(Relaxed);
        if Status::of(state) != Status::None {
            filter.state.store(Status::None.after(state), Relaxed);
        }
        // A reader that sees a later change of a line must see the change of the state.
        fence(Release);
        // Also the chunks of a builder that was terminated.
        for owner in self.owners {
            if owner.load(Relaxed) == place.owner() {
                owner.store(0, Release);
            }
        }
    }

    /// Makes the filters of a slot exclude nothing, if they describe this table. The caller calls
    /// this before it writes a row that it does not add to the filters.
    pub fn invalidate(&self, slot: usize, table: u32) {
        let filters = self.slots.get(slot).map(|slot| slot.filters.iter());
        for filter in filters.into_iter().flatten() {
            let _ = filter.state.fetch_update(AcqRel, Acquire, |state| {
                let is_of_table = filter.table.load(Relaxed) == table;
                let has_filter = matches!(Status::of(state), Status::Building | Status::Complete);
                (is_of_table && has_filter).then(|| Status::Invalid.after(state))
            });
        }
    }

    /// Describes the filter of a slot that is in use, or the only one. Returns `None` if there is
    /// none.
    pub fn describe(&self, slot: usize) -> Option<Description> {
        let [first, second] = Place::all(slot).map(|place| self.describe_at(place));
        let is_complete = |filter: &Description| filter.status == Status::Complete;
        let (used, other) = match second.filter(is_complete) {
            Some(used) => (Some(used), first),
            None => (first.or(second), first.and(second)),
        };
        let other = other.filter(|other| other.status != Status::Invalid);
        used.map(|used| Description {
            is_being_replaced: other.is_some(),
            bytes: used.bytes + other.map_or(0, |other| other.bytes),
            ..used
        })
    }

    fn describe_at(&self, place: Place) -> Option<Description> {
        let (filter, figures) = (self.filter(place)?, self.figures(place)?);
        let status = Status::of(filter.state.load(Acquire));
        (status != Status::None).then(|| Description {
            tag: filter.tag(),
            status,
            bits_per_claim: figures.bits_per_claim.load(Relaxed),
            is_being_replaced: false,
            bytes: filter.lines.load(Relaxed) * LINE_BYTES as u64,
            expected_false_positives: self.expected_false_positives(filter),
            look_ups: figures.look_ups.load(Relaxed),
            false_positives: figures.false_positives.load(Relaxed),
        })
    }

    /// Counts look-ups of claims that are not in the slice, if the filter with this tag is
    /// complete.
    pub fn count_look_ups(&self, slot: usize, tag: Tag, look_ups: u64) {
        if let Some(figures) = self.figures_of_complete(slot, tag) {
            figures.look_ups.fetch_add(look_ups, Relaxed);
        }
    }

    /// Counts a look-up that the filter did not exclude, although the claim is not in the slice, if
    /// the filter with this tag is complete.
    pub fn count_false_positive(&self, slot: usize, tag: Tag) {
        if let Some(figures) = self.figures_of_complete(slot, tag) {
            figures.false_positives.fetch_add(1, Relaxed);
        }
    }

    fn figures_of_complete(&self, slot: usize, tag: Tag) -> Option<&'a Figures> {
        self.figures(self.place(slot, tag, Status::Complete)?)
    }

    /// Returns the place of the filter of a slot with this tag and this status.
    fn place(&self, slot: usize, tag: Tag, status: Status) -> Option<Place> {
        Place::all(slot).into_iter().find(|&place| {
            self.filter(place).is_some_and(|filter| {
                Status::of(filter.state.load(Acquire)) == status && filter.tag() == tag
            })
        })
    }

    fn filter(&self, place: Place) -> Option<&'a Filter> {
        self.slots.get(place.slot)?.filters.get(place.number)
    }

    fn figures(&self, place: Place) -> Option<&'a Figures> {
        self.slots.get(place.slot)?.figures.get(place.number)
    }

    /// Returns whether there is memory for one more filter for this many claims.
    pub fn has_room_for(&self, claims: u64) -> bool {
        let least = BITS_PER_CLAIM.into_iter().min().unwrap_or(1);
        let count = lines_for(claims, least).div_ceil(CHUNK_LINES as u64);
        count <= MAX_CHUNKS && chunks_for(count) <= self.free_chunks()
    }

    /// Computes the probability of a false positive from the first lines: the hash of a claim
    /// selects each line with the same probability.
    fn expected_false_positives(&self, filter: &Filter) -> f64 {
        let lines = filter.lines.load(Relaxed).min(CHUNK_LINES as u64);
        false_positives((0..lines).filter_map(|line| self.line_at(filter, line)))
    }

    /// Returns the number of chunks without an owner.
    fn free_chunks(&self) -> u64 {
        let owners = self.owners.iter();
        owners.filter(|of| of.load(Relaxed) == 0).count() as u64
    }

    /// Takes `count` chunks for lines and, if they are more than one, a chunk that lists them.
    /// Makes the lines exclude every claim. Returns the number of the first chunk.
    fn take(&self, place: Place, count: u64) -> Option<u32> {
        let mut free = self
            .owners
            .iter()
            .enumerate()
            .filter_map(|(number, owner)| {
                owner
                    .compare_exchange(0, place.owner(), AcqRel, Relaxed)
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
            self.remove_at(place);
        }
        taken
    }

    fn line(&self, filter: &Filter, hash: ClaimHash) -> Option<&'a Line> {
        self.line_at(filter, hash.line(filter.lines.load(Relaxed)))
    }

    fn line_at(&self, filter: &Filter, number: u64) -> Option<&'a Line> {
        let number = number as usize;
        let first = self.chunks.get(filter.first.load(Relaxed) as usize)?;
        if filter.lines.load(Relaxed) <= CHUNK_LINES as u64 {
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

impl Slot {
    fn states(&self) -> [u64; FILTERS] {
        std::array::from_fn(|number| self.filters[number].state.load(Acquire))
    }
}

impl Filter {
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
        if let Some(filter) = self.arena.filter(self.place)
            && let Some(line) = self.arena.line(filter, hash)
        {
            line.add(hash);
        }
    }

    /// Returns a number that is different for each preparation of the slot.
    pub fn number(&self) -> u64 {
        self.state * FILTERS as u64 + self.place.number as u64
    }

    /// Publishes the filter: every claim of the slice was added. Removes the filter that it
    /// replaces. Returns false if rows have arrived in the meantime that may not be in the filter;
    /// it then stays invalid.
    pub fn complete(self) -> bool {
        let complete = Status::Complete.after(self.state);
        let is_complete = self.arena.filter(self.place).is_some_and(|filter| {
            let state = &filter.state;
            let changed = state.compare_exchange(self.state, complete, AcqRel, Acquire);
            changed.is_ok()
        });
        if is_complete {
            self.arena.remove_at(self.place.other());
        }
        is_complete
    }
}

#[cfg(test)]
mod tests;
