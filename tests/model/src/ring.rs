//! The ring and its rotation (sql/internal/rotation.sql).

use crate::{Claims, Row, Rule, State, filter};

/// The number of slices: current, next and two sealed slices. The rings have six sealed slices; two
/// are enough to have an oldest and a newest one.
pub const SLICES: usize = 4;
/// The number of segments of a slice: three states of a ring can write three segments.
pub const SEGMENTS: usize = 3;

/// A segment of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub slice: usize,
    pub segment: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Steady,
    Advancing,
    Opening,
    Emptying,
}

/// The published state of the ring: a row of `idem.ring`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ring {
    /// Current, next, and the sealed slices, the oldest first.
    order: [usize; SLICES],
    pub phase: Phase,
    /// The present segment of the current slice.
    pub segment: usize,
    /// How often a segment has advanced, in all slices.
    pub advances: u8,
    pub rotations: u8,
    /// The number of periods that have passed.
    periods: u8,
    /// The number of the published state. Each step publishes a new one.
    pub number: u8,
    /// The number of the state with which each slice began to take claims.
    pub opened: [u8; SLICES],
}

impl Ring {
    pub const NEW: Ring = Ring {
        order: [0, 1, 2, 3],
        phase: Phase::Steady,
        segment: 0,
        advances: 0,
        rotations: 0,
        periods: 0,
        number: 0,
        opened: [0; SLICES],
    };

    pub fn periods(&self) -> u8 {
        self.periods
    }

    fn next(&self) -> usize {
        self.order[1]
    }

    /// The segments to which claims are written (`Ring::written`).
    pub fn written(&self) -> Vec<Place> {
        let current = |segment| Place {
            slice: self.order[0],
            segment,
        };
        let mut written = vec![current(self.segment)];
        match self.phase {
            Phase::Advancing => written.push(current(self.segment + 1)),
            Phase::Opening => written.push(Place {
                slice: self.next(),
                segment: 0,
            }),
            Phase::Steady | Phase::Emptying => {}
        }
        written
    }

    /// The slices in which a claim can be, the oldest first.
    pub fn probed(&self) -> Vec<usize> {
        let mut probed = self.order[2..].to_vec();
        probed.push(self.order[0]);
        if self.phase == Phase::Opening {
            probed.push(self.next());
        }
        probed
    }

    /// Whether claims of the two states are written to a common segment.
    pub fn shares_a_segment_with(&self, other: &Ring) -> bool {
        let written = other.written();
        self.written().iter().any(|place| written.contains(place))
    }
}

/// `idem.fence`: whether the transactions have ended that entered with an older state.
fn has_passed(model: &Claims, state: &mut State) -> bool {
    let number = state.ring.number;
    let name = (state.ring.phase, state.ring.rotations);
    let has_older = {
        let mut entered = state.claimers.iter().filter_map(|claimer| claimer.ring());
        entered.any(|entered| entered.number < number)
    };
    if model.keeps(Rule::FenceName) {
        return !has_older;
    }
    let is_stored = state.passed == Some(name);
    if !has_older {
        state.passed = Some(name);
    }
    is_stored || !has_older
}

/// `idem.rotate`: the next step of an advance.
pub fn advance(model: &Claims, state: &mut State) -> bool {
    let ring = state.ring;
    let has_segment = ring.advances < model.advances && ring.segment + 1 < SEGMENTS;
    match ring.phase {
        Phase::Steady if has_segment && model.keeps(Rule::Opening) => {
            state.ring.phase = Phase::Advancing;
            state.ring.advances += 1;
        }
        Phase::Steady if has_segment => {
            state.ring.segment += 1;
            state.ring.advances += 1;
        }
        Phase::Advancing => {
            if model.keeps(Rule::FirstFence) && !has_passed(model, state) {
                return false;
            }
            state.ring.phase = Phase::Steady;
            state.ring.segment += 1;
        }
        Phase::Steady | Phase::Opening | Phase::Emptying => return false,
    }
    state.ring.number += 1;
    true
}

/// `idem.rotate`: the next step of a rotation.
pub fn rotate(model: &Claims, state: &mut State) -> bool {
    let next = state.ring.next();
    let is_locked = state.claimers.iter().any(|claimer| claimer.locks(next))
        || next == state.filtered && filter::copies(state);
    let fence = match state.ring.phase {
        Phase::Opening => Some(Rule::FirstFence),
        Phase::Emptying => Some(Rule::SecondFence),
        Phase::Steady | Phase::Advancing => None,
    };
    if fence.is_some_and(|rule| model.keeps(rule)) && !has_passed(model, state) {
        return false;
    }
    let ring = &mut state.ring;
    match ring.phase {
        // The advance is completed first.
        Phase::Advancing => return false,
        Phase::Steady if ring.rotations == model.rotations => return false,
        Phase::Steady => {
            if model.keeps(Rule::Opening) {
                ring.phase = Phase::Opening;
            }
            ring.opened[ring.next()] = ring.number + 1;
            if !model.keeps(Rule::Opening) {
                seal(model, ring);
            }
        }
        Phase::Opening => seal(model, ring),
        // TRUNCATE waits for the writers of the slice.
        Phase::Emptying if is_locked => return false,
        Phase::Emptying => {
            let kept = SLICES as u8 - 2;
            let is_young = |row: &Row| row.periods + kept >= ring.periods;
            let is_claim = |row: &Row| row.by.is_some() && row.is_committed;
            let removed = std::mem::take(&mut state.rows[next]);
            let mut claims = removed.into_iter().flatten().filter(is_claim);
            // A claim that was written while the ring was opening is in the next slice too.
            let is_kept = state
                .rows
                .as_flattened()
                .iter()
                .flatten()
                .any(|row| row.is_committed);
            state.is_removed |= claims.clone().next().is_some();
            state.is_forgotten_early |= !is_kept && claims.any(|row| is_young(&row));
            ring.phase = Phase::Steady;
        }
    }
    ring.number += 1;
    true
}

/// The slices rotate: current becomes sealed, next becomes current, the oldest becomes next.
fn seal(model: &Claims, ring: &mut Ring) {
    ring.order.rotate_left(1);
    ring.phase = Phase::Emptying;
    ring.segment = 0;
    ring.rotations += 1;
    // Without the rule the ring also rotates when its segments are used up.
    ring.periods += u8::from(model.keeps(Rule::Period));
}
