//! A claim (extension/src/claim/mod.rs).

use crate::{Claims, Ring, Row, Rule, SEGMENTS, SLICES, State};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Claimer {
    Idle,
    /// Has entered the ring with this state.
    Entered(Ring),
    /// Has locked the slices to which it writes.
    Open(Open),
    /// Has found a claim in this slice. Its transaction is open, and reads the claim again.
    Duplicate {
        ring: Ring,
        slice: usize,
        is_first: bool,
    },
    /// Has committed or rolled back.
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Open {
    pub ring: Ring,
    pub step: Step,
    /// Whether the claimer is the first in the filter, so that it uses an ordinary insert.
    is_first: bool,
    /// The slices in which a copied row was committed when the claimer entered.
    must_find: [bool; SLICES],
    met_in_progress: bool,
}

/// The next step, with the position in the list of slices or written segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Reads the next row of the slice that is in a segment below this one.
    Look(usize, usize),
    Add(usize),
    Insert(usize),
    Written,
}

impl Claimer {
    /// The state with which the claimer has entered, until it ends.
    pub fn ring(&self) -> Option<&Ring> {
        match self {
            Claimer::Entered(ring) => Some(ring),
            Claimer::Open(open) => Some(&open.ring),
            Claimer::Duplicate { ring, .. } => Some(ring),
            Claimer::Idle | Claimer::Ended => None,
        }
    }

    /// Whether the claimer can have a deleted row in the slice with the filter, until its
    /// transaction ends.
    pub fn is_first(&self) -> bool {
        match self {
            Claimer::Open(open) => open.is_first,
            Claimer::Duplicate { is_first, .. } => *is_first,
            Claimer::Idle | Claimer::Entered(_) | Claimer::Ended => false,
        }
    }

    /// Whether the claimer holds the lock of a writer on the slice.
    pub fn locks(&self, slice: usize) -> bool {
        let ring = match self {
            Claimer::Open(Open { ring, .. }) | Claimer::Duplicate { ring, .. } => ring,
            Claimer::Idle | Claimer::Entered(_) | Claimer::Ended => return false,
        };
        ring.written().iter().any(|place| place.slice == slice)
    }
}

pub fn enter(state: &mut State, n: usize) -> bool {
    state.claimers[n] = Claimer::Entered(state.ring);
    true
}

pub fn open(state: &mut State, n: usize) -> bool {
    let Claimer::Entered(ring) = state.claimers[n] else {
        return false;
    };
    let is_copied = |rows: &[Option<Row>; SEGMENTS]| {
        let mut rows = rows.iter().flatten();
        rows.any(|row| row.by.is_none() && row.is_committed)
    };
    state.claimers[n] = Claimer::Open(Open {
        ring,
        step: Step::Look(0, SEGMENTS),
        is_first: false,
        must_find: state.rows.each_ref().map(is_copied),
        met_in_progress: false,
    });
    true
}

/// The next step of a claim. Returns false while the claimer waits.
pub fn step(model: &Claims, state: &mut State, n: usize) -> bool {
    let Claimer::Open(mut open) = state.claimers[n].clone() else {
        return false;
    };
    let (probed, written) = (open.ring.probed(), open.ring.written());
    match open.step {
        Step::Look(at, _) if at == probed.len() => {
            if open.met_in_progress {
                // Waits for the other transaction and looks again.
                if written
                    .iter()
                    .any(|place| in_progress(state, n, place.slice))
                {
                    return false;
                }
                open.met_in_progress = false;
                open.step = Step::Look(0, SEGMENTS);
            } else {
                open.step = Step::Add(0);
            }
        }
        Step::Look(at, below) => {
            let slice = probed[at];
            // The filter is checked once.
            let is_read = below < SEGMENTS || !is_excluded(model, state, &open.ring, slice);
            let row = last_row(model, state, &open.ring, slice, below).filter(|_| is_read);
            open.step = match row {
                Some((segment, _)) => Step::Look(at, segment),
                None => Step::Look(at + 1, SEGMENTS),
            };
            match row {
                Some((_, row)) if row.is_committed => return duplicate(state, n, &open, slice),
                Some((_, row)) if row.by != Some(n) => open.met_in_progress = true,
                _ => {}
            }
        }
        Step::Add(at) => {
            let slice = written[at].slice;
            if model.keeps(Rule::Add) && slice == state.filtered {
                open.is_first |= state.filter.add(model, open.ring.opened[slice]);
            }
            open.step = Step::Insert(at);
        }
        Step::Insert(at) => {
            let (slice, segment) = (written[at].slice, written[at].segment);
            match state.rows[slice][segment] {
                Some(row) if row.is_committed => return duplicate(state, n, &open, slice),
                Some(row) if row.by != Some(n) => {
                    let mut rows = state.rows[slice].iter().flatten();
                    let has_own = rows.any(|row| row.by == Some(n));
                    let takes_own = !model.keeps(Rule::Conflict) && has_own;
                    return takes_own && duplicate(state, n, &open, slice);
                }
                _ => {}
            }
            state.rows[slice][segment] = Some(Row::new(Some(n), &state.ring));
            open.step = match at + 1 == written.len() {
                true => Step::Written,
                false => Step::Add(at + 1),
            };
        }
        Step::Written => return false,
    }
    state.claimers[n] = Claimer::Open(open);
    true
}

fn is_excluded(model: &Claims, state: &State, ring: &Ring, slice: usize) -> bool {
    slice == state.filtered && state.filter.excludes(model, ring.opened[slice])
}

/// `Lookup::in_segments`: the row of the slice in the last segment below this one.
fn last_row(
    model: &Claims,
    state: &State,
    ring: &Ring,
    slice: usize,
    below: usize,
) -> Option<(usize, Row)> {
    let written = ring.written();
    let is_present = |segment: usize| {
        let mut places = written.iter().filter(|place| place.slice == slice);
        places.clone().next().is_none() || places.any(|place| place.segment == segment)
    };
    let is_read = |&segment: &usize| model.keeps(Rule::WholeSlice) || is_present(segment);
    let mut segments = (0..below).rev().filter(is_read);
    segments.find_map(|segment| Some((segment, state.rows[slice][segment]?)))
}

fn in_progress(state: &State, n: usize, slice: usize) -> bool {
    let mut rows = state.rows[slice].iter().flatten();
    rows.any(|row| !row.is_committed && row.by != Some(n))
}

/// The message is claimed in this slice: what the claim has written is retracted.
fn duplicate(state: &mut State, n: usize, open: &Open, slice: usize) -> bool {
    roll_back(state, n);
    state.claimers[n] = Claimer::Duplicate {
        ring: open.ring,
        slice,
        is_first: open.is_first,
    };
    true
}

/// Notes a second claim: a committed row of another transaction that this claim had to find.
pub fn commit(state: &mut State, n: usize) -> bool {
    let Claimer::Open(open) = state.claimers[n].clone() else {
        return false;
    };
    for slice in open.ring.probed() {
        let rows = state.rows[slice].iter().flatten();
        let mut others = rows.filter(|row| row.is_committed && row.by != Some(n));
        state.is_doubled |= others.any(|row| row.by.is_some() || open.must_find[slice]);
    }
    for row in state.rows.as_flattened_mut().iter_mut().flatten() {
        if row.by == Some(n) {
            *row = Row {
                is_committed: true,
                ..Row::new(Some(n), &state.ring)
            };
        }
    }
    state.claimers[n] = Claimer::Ended;
    true
}

pub fn roll_back(state: &mut State, n: usize) -> bool {
    for row in state.rows.as_flattened_mut() {
        *row = row.filter(|row| row.by != Some(n) || row.is_committed);
    }
    state.claimers[n] = Claimer::Ended;
    true
}
