//! The fence between two steps of the ring (sql/internal/fence.sql).

use crate::{Claims, Lockers, Phase, Ring, Rule, State};

/// The stored list of the transactions that had entered the ring at the first check of a step: a
/// row of `idem.fence`. The list of the step before it is kept until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    name: Option<Name>,
    pub lockers: Lockers,
}

/// `idem.published_step`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Name {
    step: Phase,
    rotations: u8,
    segment: u8,
    /// The time at which the step was published.
    published: u8,
}

impl Name {
    fn of(model: &Claims, ring: &Ring) -> Name {
        let is_whole = model.keeps(Rule::FenceName);
        Name {
            step: ring.phase,
            rotations: ring.rotations,
            segment: if is_whole { ring.segment } else { 0 },
            published: if is_whole { ring.number } else { 0 },
        }
    }
}

impl Fence {
    pub const NONE: Fence = Fence {
        name: None,
        lockers: Lockers::NONE,
    };
}

/// `idem.fence`. The first check lists the transactions. Transactions without this message are
/// listed too, so only a later check passes.
pub fn has_passed(model: &Claims, state: &mut State) -> bool {
    let name = Some(Name::of(model, &state.ring));
    if state.fence.name == name {
        return state.fence.lockers.have_ended();
    }
    let mut lockers = Lockers::NONE;
    for (n, claimer) in (0..).zip(&state.claimers) {
        if claimer.ring().is_some() {
            lockers.add(n);
        }
    }
    state.fence = Fence { name, lockers };
    false
}
