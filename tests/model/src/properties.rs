//! What holds in each state, and what a model reaches.

use crate::{Claimer, Claims, Phase, Place, Ring, Row, SLICES, State, Step};
use stateright::Property;

/// I1.
pub const CLAIMED_ONCE: &str = "a message is claimed once";
/// I1: two claimers that delete their rows would wait for each other.
pub const ONE_FIRST: &str = "at most one claimer of a slice uses an ordinary insert";
/// I1: otherwise the unique index cannot decide between two claimers.
pub const SHARED: &str = "any two states that are used share a place to which claims are written";
/// I6.
pub const KEPT: &str = "a claim is kept for the retention";
/// I7.
pub const REMOVED: &str = "a slice is emptied before it takes claims again";
/// I8, I3.
pub const SAME_FACTS: &str = "a duplicate writes nothing and finds the same claim until it ends";

/// The properties that must hold in each state.
pub const INVARIANTS: [&str; 6] = [CLAIMED_ONCE, ONE_FIRST, SHARED, KEPT, REMOVED, SAME_FACTS];

pub fn of(model: &Claims) -> Vec<Property<Claims>> {
    let mut properties = vec![
        Property::always(CLAIMED_ONCE, |_, state: &State| !state.is_doubled),
        Property::always(ONE_FIRST, |_, state| firsts(state) <= 1),
        Property::always(SHARED, |_, state| shares_places(state)),
        Property::always(KEPT, |_, state: &State| !state.is_forgotten_early),
        Property::always(REMOVED, |_, state| next_slice_is_empty(state)),
        Property::always(SAME_FACTS, |_, state| duplicates_find_a_claim(state)),
        Property::sometimes("a filter excludes the message of a claimer", has_excluded),
        Property::sometimes("a filter has the message", |_, state: &State| {
            state.filter.has_message()
        }),
        Property::sometimes("a claimer uses an ordinary insert", |_, state| {
            firsts(state) == 1
        }),
        Property::sometimes("a duplicate is found", |_, state: &State| {
            let is_duplicate = |claimer| matches!(claimer, &Claimer::Duplicate { .. });
            state.claimers.iter().any(is_duplicate)
        }),
        Property::sometimes("three states are used", |_, state| {
            let mut numbers: Vec<u8> = used_rings(state).map(|ring| ring.number).collect();
            numbers.sort_unstable();
            numbers.dedup();
            numbers.len() == 3
        }),
    ];
    if model.advances > 0 {
        properties.push(Property::sometimes(
            "a duplicate is found in a segment that takes no claims",
            |_, state: &State| state.claimers.iter().any(is_found_below),
        ));
    }
    if model.rotations + 1 >= SLICES {
        let is_removed = |_: &Claims, state: &State| state.is_removed;
        properties.push(Property::sometimes("a claim is removed", is_removed));
    }
    properties
}

/// The states with which open claimers have entered, and the present state.
fn used_rings(state: &State) -> impl Iterator<Item = &Ring> + Clone {
    let entered = state.claimers.iter().filter_map(Claimer::ring);
    entered.chain([&state.ring])
}

fn shares_places(state: &State) -> bool {
    used_rings(state).all(|one| {
        used_rings(state).all(|other| {
            let is_shared = |place| other.written().any(|written| written == place);
            one.written().any(is_shared)
        })
    })
}

/// Whether no claim is in the next slice, unless the ring writes to it or has yet to empty it.
fn next_slice_is_empty(state: &State) -> bool {
    let mut next = state.rows.of_slice(state.ring.next_slice());
    match state.ring.phase {
        Phase::Opening | Phase::Emptying => true,
        Phase::Steady | Phase::Advancing => !next.any(Row::is_of_claim),
    }
}

/// Whether a claimer that has looked into all slices did not read the one with the filter.
fn has_excluded(model: &Claims, state: &State) -> bool {
    state.claimers.iter().any(|claimer| {
        let Claimer::Open(open) = claimer else {
            return false;
        };
        let opened = open.ring.opened(state.filtered);
        matches!(open.step, Step::Add(0) | Step::Insert(0))
            && open.ring.probed().any(|slice| slice == state.filtered)
            && state.filter.excludes(model, opened)
    })
}

/// Whether a claimer has found a claim in a segment below those to which it writes.
fn is_found_below(claimer: &Claimer) -> bool {
    let Claimer::Duplicate { ring, place, .. } = claimer else {
        return false;
    };
    let is_above = |written: Place| written.slice == place.slice && written.segment > place.segment;
    ring.written().all(is_above)
}

/// The number of open claimers that use an ordinary insert.
fn firsts(state: &State) -> usize {
    let is_first = |claimer: &&Claimer| claimer.is_first();
    state.claimers.iter().filter(is_first).count()
}

/// A row of the duplicate itself is not a claim that it finds, because it is retracted.
fn duplicates_find_a_claim(state: &State) -> bool {
    (0..).zip(&state.claimers).all(|(n, claimer)| {
        let Claimer::Duplicate { place, .. } = claimer else {
            return true;
        };
        let is_found = state.rows.at(*place).is_some_and(|row| row.is_committed());
        let has_written = state.rows.all().any(|row| row.by == n);
        is_found && !has_written
    })
}
