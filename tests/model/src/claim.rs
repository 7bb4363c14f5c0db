//! The steps of a claim (extension/src/claim/mod.rs).

use crate::claimer::Open;
use crate::{Claimer, Claims, Place, Ring, Row, Rule, SEGMENTS, State, Transaction};

/// The next step, with the position in the list of slices, or of written places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Checks the filter of a slice, and finds the last segment that has a row.
    Look(u8),
    /// Reads a segment of the slice.
    Read(u8, u8),
    Add(u8),
    Insert(u8),
    Written,
}

/// `ClaimWriter::decide`: the next step. Returns false while the claimer waits.
pub fn step(model: &Claims, state: &mut State, n: Transaction) -> bool {
    let Claimer::Open(mut open) = state.claimers[usize::from(n)] else {
        return false;
    };
    let found = match open.step {
        Step::Look(at) => look(model, state, &mut open, at),
        Step::Read(at, segment) => read(state, &mut open, at, segment),
        Step::Add(at) => {
            if model.keeps(Rule::Add) {
                let opened = open.ring.opened(state.filtered);
                open.is_first |= state.filter.add(model, opened);
            }
            open.step = Step::Insert(at);
            Found::Nothing
        }
        Step::Insert(at) => insert(model, state, n, &mut open, at),
        Step::Written => Found::InProgress,
    };
    state.claimers[usize::from(n)] = match found {
        Found::Nothing => Claimer::Open(open),
        Found::Claim(place) => {
            // What the claim has written is retracted.
            state.rows.roll_back(|by| by == n);
            Claimer::Duplicate {
                ring: open.ring,
                place,
                is_first: open.is_first,
            }
        }
        Found::InProgress => return false,
    };
    true
}

enum Found {
    /// The claim goes on.
    Nothing,
    /// The message is claimed in this place.
    Claim(Place),
    /// The claimer waits for the other transaction.
    InProgress,
}

/// `Lookup::in_segments`: begins to read a slice, or ends the look-up after the last one.
fn look(model: &Claims, state: &State, open: &mut Open, at: u8) -> Found {
    let Some(slice) = open.ring.probed().nth(at.into()) else {
        if open.met_in_progress && !state.rows.all().all(Row::is_committed) {
            return Found::InProgress;
        }
        open.step = match std::mem::take(&mut open.met_in_progress) {
            true => Step::Look(0),
            false => write(state, &open.ring, 0),
        };
        return Found::Nothing;
    };
    let opened = open.ring.opened(slice);
    let is_excluded = slice == state.filtered && state.filter.excludes(model, opened);
    let last = match model.keeps(Rule::WholeSlice) {
        true => SEGMENTS - 1,
        false => open.ring.last_known_segment(slice),
    };
    open.step = match state.rows.last_segment(slice) {
        Some(segment) if !is_excluded => Step::Read(at, segment.min(last)),
        _ => Step::Look(at + 1),
    };
    Found::Nothing
}

fn read(state: &State, open: &mut Open, at: u8, segment: u8) -> Found {
    open.step = match segment {
        0 => Step::Look(at + 1),
        _ => Step::Read(at, segment - 1),
    };
    let slice = open.ring.probed().nth(at.into());
    let place = slice.map(|slice| Place { slice, segment });
    match place.and_then(|place| Some((place, state.rows.at(place)?))) {
        Some((place, row)) if row.is_committed() => return Found::Claim(place),
        Some(_) => open.met_in_progress = true,
        None => {}
    }
    Found::Nothing
}

/// The step that writes to this place. Only one slice has a filter.
fn write(state: &State, ring: &Ring, at: u8) -> Step {
    match ring.written().nth(at.into()) {
        Some(place) if place.slice == state.filtered => Step::Add(at),
        Some(_) => Step::Insert(at),
        None => Step::Written,
    }
}

/// `ClaimWriter::insert`
fn insert(model: &Claims, state: &mut State, n: Transaction, open: &mut Open, at: u8) -> Found {
    let Some(place) = open.ring.written().nth(at.into()) else {
        return Found::InProgress;
    };
    if state.rows.at(place).is_some() {
        return conflict(model, state, n, place);
    }
    let row = Row {
        by: n,
        committed: None,
    };
    state.rows.insert(place, row);
    open.step = write(state, &open.ring, at + 1);
    Found::Nothing
}

/// `Lookup::in_segment`, after an insert met a row of another transaction.
fn conflict(model: &Claims, state: &State, n: Transaction, place: Place) -> Found {
    let segments = match model.keeps(Rule::Conflict) {
        true => place.segment..place.segment + 1,
        false => 0..SEGMENTS,
    };
    let mut places = segments.map(|segment| Place { segment, ..place });
    let is_visible = |place: &Place| {
        let row = state.rows.at(*place);
        row.is_some_and(|row| row.is_committed() || row.by == n)
    };
    places
        .find(is_visible)
        .map_or(Found::InProgress, Found::Claim)
}
