//! The filters (extension/src/filters, extension/core/src/filter).

use crate::{COPIER, Claims, Lockers, Rule, State};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// The slice has no filter, or an invalid one.
    None,
    Building,
    Complete,
}

/// The filter in the slot of a slice. It describes all segments of the slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Filter {
    pub status: Status,
    /// When the slice began to take the claims that the filter describes.
    opened: u8,
    /// Whether the message may be in the slice.
    may_have: bool,
    /// The transactions that the filter waits for.
    pub lockers: Option<Lockers>,
    pub is_scanned: bool,
}

impl Filter {
    pub const NONE: Filter = Filter {
        status: Status::None,
        opened: 0,
        may_have: false,
        lockers: None,
        is_scanned: false,
    };

    /// Whether a claimer that uses the slice with this tag skips it (`Arena::may_have`).
    pub fn excludes(&self, model: &Claims, opened: u8) -> bool {
        let is_of_slice = self.opened == opened || !model.keeps(Rule::Tag);
        let is_complete = match self.status {
            Status::Complete => true,
            Status::Building => !model.keeps(Rule::Completeness),
            Status::None => false,
        };
        is_complete && is_of_slice && !self.may_have
    }

    /// Whether the filter is complete and has the message.
    pub fn has_message(&self) -> bool {
        self.status == Status::Complete && self.may_have
    }

    /// `Arena::add`. Returns whether the claimer is the first in a complete filter.
    pub fn add(&mut self, model: &Claims, opened: u8) -> bool {
        if self.status == Status::None || self.opened != opened {
            return false;
        }
        let was_missing = !self.may_have;
        self.may_have = true;
        was_missing && (self.status == Status::Complete || !model.keeps(Rule::First))
    }
}

/// `Arena::prepare`
pub fn prepare(state: &mut State) -> bool {
    let slice = state.filtered;
    let opened = state.ring.opened(slice);
    let filter = &mut state.filter;
    let is_needed = filter.status != Status::Complete || filter.opened != opened;
    if !is_needed || !state.ring.probed().any(|probed| probed == slice) {
        return false;
    }
    *filter = Filter {
        status: Status::Building,
        opened,
        ..Filter::NONE
    };
    true
}

/// `Lockers::of`
pub fn list(model: &Claims, state: &mut State) -> bool {
    let mut lockers = Lockers::NONE;
    if model.keeps(Rule::Lockers) {
        for (n, claimer) in (0..).zip(&state.claimers) {
            if claimer.locks(state.filtered) {
                lockers.add(n);
            }
        }
        if state.copier.locks() {
            lockers.add(COPIER);
        }
    }
    state.filter.lockers = Some(lockers);
    true
}

/// `for_each_version`, after `Lockers::have_ended`
pub fn scan(state: &mut State) -> bool {
    let lockers = state.filter.lockers;
    if !lockers.is_some_and(|lockers| lockers.have_ended()) {
        return false;
    }
    state.filter.may_have |= state.rows.of_slice(state.filtered).next().is_some();
    state.filter.is_scanned = true;
    true
}

/// `Building::complete`
pub fn complete(state: &mut State) -> bool {
    state.filter.status = Status::Complete;
    true
}
