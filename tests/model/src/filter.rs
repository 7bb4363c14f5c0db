//! The filters (extension/src/filters, extension/core/src/filter).

use crate::{Claims, Copier, Row, Rule, SEGMENTS, State};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    None,
    Building,
    Complete,
    Invalid,
}

/// The filter in the slot of a slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Filter {
    pub status: Status,
    /// When the slice began to take the claims that the filter describes.
    opened: u8,
    /// Whether the message may be in the slice.
    may_have: bool,
    /// The claimers, and the copier as `None`, that the filter waits for.
    pub lockers: Option<Vec<Option<usize>>>,
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
            Status::None | Status::Invalid => false,
        };
        is_complete && is_of_slice && !self.may_have
    }

    /// Whether the filter is complete and has the message.
    pub fn has_message(&self) -> bool {
        self.status == Status::Complete && self.may_have
    }

    /// `Arena::add`. Returns whether the claimer is the first in a complete filter.
    pub fn add(&mut self, model: &Claims, opened: u8) -> bool {
        let has_lines = matches!(self.status, Status::Building | Status::Complete);
        if !has_lines || self.opened != opened {
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
    let opened = state.ring.opened[slice];
    let filter = &mut state.filter;
    let is_needed = filter.status != Status::Complete || filter.opened != opened;
    if !is_needed || !state.ring.probed().contains(&slice) {
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
    let mut lockers = Vec::new();
    if model.keeps(Rule::Lockers) {
        let claimers = state.claimers.iter().enumerate();
        let locking = claimers.filter(|(_, claimer)| claimer.locks(state.filtered));
        lockers.extend(locking.map(|(n, _)| Some(n)));
        if copies(state) {
            lockers.push(None);
        }
    }
    state.filter.lockers = Some(lockers);
    true
}

/// `for_each_version`, after `Lockers::have_ended`
pub fn scan(state: &mut State) -> bool {
    let lockers = state.filter.lockers.clone().unwrap_or_default();
    let is_locked = lockers.into_iter().any(|locker| match locker {
        Some(n) => state.claimers[n].locks(state.filtered),
        None => copies(state),
    });
    if is_locked {
        return false;
    }
    let mut rows = state.rows[state.filtered].iter();
    state.filter.may_have |= rows.any(Option::is_some);
    state.filter.is_scanned = true;
    true
}

/// `Building::complete`
pub fn complete(state: &mut State) -> bool {
    state.filter.status = Status::Complete;
    true
}

/// Whether the copier holds its lock on the slice.
pub fn copies(state: &State) -> bool {
    matches!(
        state.copier,
        Copier::Locked | Copier::Checked | Copier::Inserted
    )
}

/// The segment of the copied row. It can be above the present segment.
const COPIED: usize = SEGMENTS - 1;

/// The next step of COPY: lock, CHECK, insert, commit.
pub fn copy(model: &Claims, state: &mut State) -> bool {
    let copied = Row::new(None, &state.ring);
    let row = &mut state.rows[state.filtered][COPIED];
    state.copier = match state.copier {
        Copier::Idle => Copier::Locked,
        Copier::Locked => {
            let filter = &mut state.filter;
            let has_filter = matches!(filter.status, Status::Building | Status::Complete);
            if model.keeps(Rule::Invalidation) && has_filter {
                filter.status = Status::Invalid;
            }
            Copier::Checked
        }
        Copier::Checked => match row {
            // The unique index: COPY fails.
            Some(row) if row.is_committed => Copier::Done,
            Some(_) => return false,
            None => {
                *row = Some(copied);
                Copier::Inserted
            }
        },
        Copier::Inserted => {
            if let Some(row) = row {
                row.is_committed = true;
            }
            Copier::Done
        }
        Copier::Done => return false,
    };
    true
}
