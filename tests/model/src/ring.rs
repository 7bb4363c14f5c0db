//! The ring: its rotation, and the advance within a slice (sql/internal/rotation.sql).

use crate::{Claims, Place, Row, Rule, SEGMENTS, SLICES, State, fence};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Steady,
    /// Claims are written to the present and the next segment.
    Advancing,
    /// Claims are written to the present segment and the first one of the next slice.
    Opening,
    Emptying,
}

/// The published state of the ring: a row of `idem.ring`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ring {
    pub phase: Phase,
    pub rotations: u8,
    /// The present segment of the current slice.
    pub segment: u8,
    /// The number of the published state. Each step publishes a new one.
    pub number: u8,
    /// The number of the state with which each slice began to take claims.
    opened: [u8; SLICES as usize],
}

impl Ring {
    pub const NEW: Ring = Ring {
        phase: Phase::Steady,
        rotations: 0,
        segment: 0,
        number: 0,
        opened: [0; SLICES as usize],
    };

    /// The order of the slices is: current, next, sealed (the oldest first).
    fn slice(&self, position: u8) -> u8 {
        (self.rotations + position) % SLICES
    }

    pub fn next_slice(&self) -> u8 {
        self.slice(1)
    }

    pub fn opened(&self, slice: u8) -> u8 {
        self.opened[usize::from(slice)]
    }

    fn present(&self) -> Place {
        Place {
            slice: self.slice(0),
            segment: self.segment,
        }
    }

    fn next(&self) -> Option<Place> {
        match self.phase {
            Phase::Steady | Phase::Emptying => None,
            Phase::Advancing => Some(Place {
                slice: self.slice(0),
                segment: self.segment + 1,
            }),
            Phase::Opening => Some(Place {
                slice: self.next_slice(),
                segment: 0,
            }),
        }
    }

    /// The places to which claims are written, in the order of the inserts.
    pub fn written(&self) -> impl Iterator<Item = Place> + use<> {
        [self.present()].into_iter().chain(self.next())
    }

    /// The slices in which a claim can be, the oldest first.
    pub fn probed(&self) -> impl Iterator<Item = u8> + use<> {
        let ring = *self;
        let newest = if ring.phase == Phase::Opening { 1 } else { 0 };
        (2..=SLICES + newest).map(move |position| ring.slice(position))
    }

    /// The last segment of the slice that a look-up reads if this state limits it.
    pub fn last_known_segment(&self, slice: u8) -> u8 {
        let written = self.written().filter(|place| place.slice == slice);
        written.last().map_or(SEGMENTS - 1, |place| place.segment)
    }

    /// The next place becomes the present one.
    fn move_on(&mut self) {
        if self.phase == Phase::Opening {
            self.phase = Phase::Emptying;
            self.rotations += 1;
            self.segment = 0;
        } else {
            self.phase = Phase::Steady;
            self.segment += 1;
        }
    }
}

/// `idem.rotate`: advancing
pub fn advance(model: &Claims, state: &mut State) -> bool {
    let ring = &mut state.ring;
    let is_last = ring.segment + 1 == SEGMENTS || state.advances == model.advances;
    if ring.phase != Phase::Steady || is_last {
        return false;
    }
    state.advances += 1;
    ring.phase = Phase::Advancing;
    if !model.keeps(Rule::Advancing) {
        ring.move_on();
    }
    ring.number += 1;
    true
}

/// `idem.rotate`: opened, or the step that follows the published one. Returns false while the step
/// waits, unless it has listed the transactions for which it waits.
pub fn rotate(model: &Claims, state: &mut State) -> bool {
    let fence = state.fence;
    let phase = state.ring.phase;
    if waits(model, phase) && !fence::has_passed(model, state) {
        return state.fence != fence;
    }
    match phase {
        Phase::Steady if state.ring.rotations == model.rotations => return false,
        Phase::Steady => {
            state.ring.opened[usize::from(state.ring.next_slice())] = state.ring.number + 1;
            state.ring.phase = Phase::Opening;
            if !model.keeps(Rule::Opening) {
                move_on(model, state);
            }
        }
        Phase::Emptying => {
            if is_locked(state) {
                return false;
            }
            truncate(state);
            state.ring.phase = Phase::Steady;
        }
        Phase::Advancing | Phase::Opening => move_on(model, state),
    }
    state.ring.number += 1;
    true
}

/// Whether the step after this state waits at a fence.
fn waits(model: &Claims, phase: Phase) -> bool {
    match phase {
        Phase::Steady => false,
        Phase::Advancing | Phase::Opening => model.keeps(Rule::FirstFence),
        Phase::Emptying => model.keeps(Rule::SecondFence),
    }
}

/// `idem.rotate`: advanced or rotated
fn move_on(model: &Claims, state: &mut State) {
    // Without the rule, a ring whose segments are used up rotates before its period has passed.
    let is_due = model.keeps(Rule::Period) || state.ring.segment == 0;
    if state.ring.phase == Phase::Opening && is_due {
        state.periods += 1;
    }
    state.ring.move_on();
}

/// Whether a transaction that writes to the next slice blocks its TRUNCATE.
fn is_locked(state: &State) -> bool {
    let next = state.ring.next_slice();
    let is_claimed = state.claimers.iter().any(|claimer| claimer.locks(next));
    is_claimed || next == state.filtered && state.copier.locks()
}

/// `idem.rotate`: emptied
fn truncate(state: &mut State) {
    let next = state.ring.next_slice();
    let retention = SLICES - 2;
    let rows = state.rows;
    let claims = || rows.of_slice(next).filter(|row| row.is_of_claim());
    let is_young = |row: &Row| {
        let committed = row.committed;
        committed.is_some_and(|period| period + retention >= state.periods)
    };
    state.rows.truncate(next);
    // A claim that was written while the ring was opening is in the next slice too.
    let is_kept = state.rows.all().any(Row::is_committed);
    state.is_removed |= claims().any(Row::is_committed);
    state.is_forgotten_early |= !is_kept && claims().any(is_young);
}
