//! The transaction of a claimer (extension/src/ring, extension/src/slices.rs).

use crate::{Place, Ring, Row, State, Step, Transaction, copier};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Claimer {
    Idle,
    /// Has entered the ring with this state.
    Entered(Ring),
    /// Has locked the slices to which it writes.
    Open(Open),
    /// Has found a claim in this place. Its transaction is open, and reads the claim again.
    Duplicate {
        ring: Ring,
        place: Place,
        is_first: bool,
    },
    /// Has committed or rolled back.
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Open {
    pub ring: Ring,
    pub step: Step,
    /// Whether the claimer is the first in the filter, so that it uses an ordinary insert.
    pub is_first: bool,
    /// Whether the copied row was committed when the claimer entered.
    must_find_copied: bool,
    pub met_in_progress: bool,
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
    pub fn locks(&self, slice: u8) -> bool {
        let ring = match self {
            Claimer::Open(Open { ring, .. }) | Claimer::Duplicate { ring, .. } => ring,
            Claimer::Idle | Claimer::Entered(_) | Claimer::Ended => return false,
        };
        ring.written().any(|place| place.slice == slice)
    }
}

/// `ring::enter`
pub fn enter(state: &mut State, n: Transaction) -> bool {
    state.claimers[usize::from(n)] = Claimer::Entered(state.ring);
    true
}

/// `Slices::open`
pub fn open(state: &mut State, n: Transaction) -> bool {
    let Claimer::Entered(ring) = state.claimers[usize::from(n)] else {
        return false;
    };
    let copied = state.rows.at(copier::place(state));
    state.claimers[usize::from(n)] = Claimer::Open(Open {
        ring,
        step: Step::Look(0),
        is_first: false,
        must_find_copied: copied.is_some_and(|row| !row.is_of_claim() && row.is_committed()),
        met_in_progress: false,
    });
    true
}

/// Notes a second claim: a committed row of another transaction that this claim had to find.
pub fn commit(state: &mut State, n: Transaction) -> bool {
    let Claimer::Open(open) = &state.claimers[usize::from(n)] else {
        return false;
    };
    let is_other = |row: &Row| {
        let had_to_find = row.is_of_claim() || open.must_find_copied;
        row.is_committed() && row.by != n && had_to_find
    };
    let mut probed = open.ring.probed();
    state.is_doubled |= probed.any(|slice| state.rows.of_slice(slice).any(is_other));
    state.rows.commit(n, state.periods);
    end(state, n);
    true
}

pub fn roll_back(state: &mut State, n: Transaction) -> bool {
    state.rows.roll_back(|by| by == n);
    end(state, n);
    true
}

fn end(state: &mut State, n: Transaction) {
    state.claimers[usize::from(n)] = Claimer::Ended;
    state.fence.lockers.remove(n);
    if let Some(lockers) = &mut state.filter.lockers {
        lockers.remove(n);
    }
}
