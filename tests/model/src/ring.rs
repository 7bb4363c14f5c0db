//! The ring and its rotation (sql/internal/rotation.sql).

use crate::{Claims, Row, Rule, State, filter};

/// The number of slices: current, next and two sealed slices. The rings have six sealed slices; two
/// are enough to have an oldest and a newest one.
pub const SLICES: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Steady,
    Opening,
    Emptying,
}

/// The published state of the ring: a row of `idem.ring`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ring {
    /// Current, next, and the sealed slices, the oldest first.
    order: [usize; SLICES],
    pub phase: Phase,
    pub rotations: u8,
    /// The number of the published state. Each step publishes a new one.
    pub number: u8,
    /// The number of the state with which each slice began to take claims.
    pub opened: [u8; SLICES],
}

impl Ring {
    pub const NEW: Ring = Ring {
        order: [0, 1, 2, 3],
        phase: Phase::Steady,
        rotations: 0,
        number: 0,
        opened: [0; SLICES],
    };

    fn next(&self) -> usize {
        self.order[1]
    }

    /// The slices to which claims are written.
    pub fn written(&self) -> Vec<usize> {
        match self.phase {
            Phase::Opening => vec![self.order[0], self.next()],
            _ => vec![self.order[0]],
        }
    }

    /// The slices in which a claim can be, the oldest first.
    pub fn probed(&self) -> Vec<usize> {
        let mut probed = self.order[2..].to_vec();
        probed.extend(self.written());
        probed
    }
}

/// The next step of the rotation.
pub fn rotate(model: &Claims, state: &mut State) -> bool {
    let next = state.ring.next();
    let is_locked = state.claimers.iter().any(|claimer| claimer.locks(next))
        || next == state.filtered && filter::copies(state);
    let ring = &mut state.ring;
    let has_older = |number: u8| {
        let entered = state.claimers.iter().filter_map(|claimer| claimer.ring());
        entered.into_iter().any(|entered| entered.number < number)
    };
    match ring.phase {
        Phase::Steady if ring.rotations == model.rotations => return false,
        Phase::Steady => {
            if model.keeps(Rule::Opening) {
                ring.phase = Phase::Opening;
            }
            ring.opened[ring.next()] = ring.number + 1;
            if !model.keeps(Rule::Opening) {
                seal(ring);
            }
        }
        Phase::Opening if model.keeps(Rule::FirstFence) && has_older(ring.number) => return false,
        Phase::Opening => seal(ring),
        Phase::Emptying if model.keeps(Rule::SecondFence) && has_older(ring.number) => {
            return false;
        }
        // TRUNCATE waits for the writers of the slice.
        Phase::Emptying if is_locked => return false,
        Phase::Emptying => {
            let kept = SLICES as u8 - 2;
            let is_young = |row: Row| row.is_committed && row.rotations + kept >= ring.rotations;
            let is_of_claim = |row: &Row| row.by.is_some();
            let removed = state.rows[next].take().filter(is_of_claim);
            // A claim that was written while the ring was opening is in the next slice too.
            let is_kept = state.rows.iter().flatten().any(|row| row.is_committed);
            state.is_removed |= removed.is_some_and(|row| row.is_committed);
            state.is_forgotten_early |= !is_kept && removed.is_some_and(is_young);
            ring.phase = Phase::Steady;
        }
    }
    ring.number += 1;
    true
}

/// The slices rotate: current becomes sealed, next becomes current, the oldest becomes next.
fn seal(ring: &mut Ring) {
    ring.order.rotate_left(1);
    ring.phase = Phase::Emptying;
    ring.rotations += 1;
}
