//! A transaction that inserts a row around the claims, such as COPY.

use crate::{COPIER, Claims, Filter, Place, Row, Rule, State, Status};

/// The segment into which the row is copied: the ring advances to it and past it.
const SEGMENT: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Copier {
    Idle,
    Locked,
    Checked,
    Inserted,
    Done,
}

impl Copier {
    /// Whether the copier holds its lock on the slice.
    pub fn locks(self) -> bool {
        matches!(self, Copier::Locked | Copier::Checked | Copier::Inserted)
    }
}

pub fn place(state: &State) -> Place {
    Place {
        slice: state.filtered,
        segment: SEGMENT,
    }
}

/// The next step of COPY: lock, CHECK, insert, commit.
pub fn copy(model: &Claims, state: &mut State) -> bool {
    let place = place(state);
    state.copier = match state.copier {
        Copier::Idle => Copier::Locked,
        Copier::Locked => {
            // `idem.invalidate_filter`
            let is_used = matches!(state.filter.status, Status::Building | Status::Complete);
            if is_used && model.keeps(Rule::Invalidation) {
                state.filter = Filter::NONE;
            }
            Copier::Checked
        }
        Copier::Checked => match state.rows.at(place) {
            // The unique index: COPY fails.
            Some(row) if row.is_committed() => end(state),
            Some(_) => return false,
            None => {
                let row = Row {
                    by: COPIER,
                    committed: None,
                };
                state.rows.insert(place, row);
                Copier::Inserted
            }
        },
        Copier::Inserted => {
            // The age of the row is not checked.
            state.rows.commit(COPIER, 0);
            end(state)
        }
        Copier::Done => return false,
    };
    true
}

fn end(state: &mut State) -> Copier {
    if let Some(lockers) = &mut state.filter.lockers {
        lockers.remove(COPIER);
    }
    Copier::Done
}
