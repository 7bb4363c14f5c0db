//! A claim (extension/src/claim/mod.rs).

use crate::{Claims, Ring, Row, Rule, SLICES, State};

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

/// The next step, with the position in the list of slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    Look(usize),
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
        ring.written().contains(&slice)
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
    let is_copied = |row: &Option<Row>| row.is_some_and(|row| row.by.is_none() && row.is_committed);
    state.claimers[n] = Claimer::Open(Open {
        ring,
        step: Step::Look(0),
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
        Step::Look(at) if at == probed.len() => {
            if open.met_in_progress {
                // Waits for the other transaction and looks again.
                if written.iter().any(|&slice| in_progress(state, n, slice)) {
                    return false;
                }
                open.met_in_progress = false;
                open.step = Step::Look(0);
            } else {
                open.step = Step::Add(0);
            }
        }
        Step::Look(at) => {
            let slice = probed[at];
            open.step = Step::Look(at + 1);
            if !is_excluded(model, state, &open.ring, slice) {
                match state.rows[slice] {
                    Some(row) if row.is_committed => return duplicate(state, n, &open, slice),
                    Some(row) if row.by != Some(n) => open.met_in_progress = true,
                    _ => {}
                }
            }
        }
        Step::Add(at) => {
            let slice = written[at];
            if model.keeps(Rule::Add) && slice == state.filtered {
                open.is_first = state.filter.add(model, open.ring.opened[slice]);
            }
            open.step = Step::Insert(at);
        }
        Step::Insert(at) => {
            let slice = written[at];
            match state.rows[slice] {
                Some(row) if row.is_committed => return duplicate(state, n, &open, slice),
                Some(row) if row.by != Some(n) => return false,
                _ => {}
            }
            state.rows[slice] = Some(Row {
                by: Some(n),
                is_committed: false,
                rotations: state.ring.rotations,
            });
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

fn in_progress(state: &State, n: usize, slice: usize) -> bool {
    state.rows[slice].is_some_and(|row| !row.is_committed && row.by != Some(n))
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
        let other = state.rows[slice].filter(|row| row.is_committed && row.by != Some(n));
        state.is_doubled |= match other {
            Some(Row { by: None, .. }) => open.must_find[slice],
            Some(_) => true,
            None => false,
        };
    }
    for row in state.rows.iter_mut().flatten() {
        if row.by == Some(n) {
            row.is_committed = true;
            row.rotations = state.ring.rotations;
        }
    }
    state.claimers[n] = Claimer::Ended;
    true
}

pub fn roll_back(state: &mut State, n: usize) -> bool {
    for row in &mut state.rows {
        *row = row.filter(|row| row.by != Some(n) || row.is_committed);
    }
    state.claimers[n] = Claimer::Ended;
    true
}
