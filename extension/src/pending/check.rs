//! Pending messages as a claim looks at them: once, after the claim is inserted.

use super::identity::Identity;
use super::row::{LeaseState, State, column};
use super::{presence, tables};
use crate::errors::Result;
use crate::pg::{self, Hold, Lookup, Table};
use crate::ring::Rings;
use crate::wake::messages_received;
use std::cell::OnceCell;

/// What the pending message means for a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// There is no pending message any longer.
    Clear,
    /// Another process holds a lease on the message, for so many microseconds.
    Leased { remaining: i64 },
    /// Another transaction is changing the pending message, and the claimer does not wait.
    InProgress,
}

/// Looks at the pending messages for the claims of one statement.
pub struct PendingCheck<'a> {
    rings: &'a Rings,
    table: OnceCell<Table>,
}

impl<'a> PendingCheck<'a> {
    pub fn new(rings: &'a Rings) -> Self {
        PendingCheck {
            rings,
            table: OnceCell::new(),
        }
    }

    /// For a claimer that has inserted its claim: deletes the pending message, unless a lease
    /// protects it.
    pub fn take(&self, identity: &Identity, wait: bool) -> Result<Standing> {
        if !presence::may_exist() {
            return Ok(Standing::Clear);
        }
        let table = self.table()?;
        let mut row = Lookup::new(table, 2);
        match row.hold(&mut identity.keys(), wait) {
            Hold::Nothing => Ok(Standing::Clear),
            Hold::Busy => Ok(Standing::InProgress),
            Hold::Held => {
                // A rotation would copy the row as long as its deletion is not committed.
                table.keep_lock();
                identity.check_pending(&row)?;
                let standing = standing(&State::read(&row));
                if standing == Standing::Clear {
                    delete_pending(&mut row);
                }
                Ok(standing)
            }
        }
    }

    fn table(&self) -> Result<&Table> {
        if self.table.get().is_none() {
            let _ = self.table.set(tables::try_current(self.rings)?);
        }
        // The cell was filled above.
        self.table.get().ok_or(crate::errors::Error::NotInstalled)
    }
}

/// Deletes the held pending row: its message is done. The next message of its key can go.
pub fn delete_pending(row: &mut Lookup) {
    let has_key = row.column(column::ORDER_KEY).is_some();
    row.delete();
    if has_key {
        messages_received();
    }
}

/// A message that idem_next handed out is completed by a claim, so its lease does not stop a claim:
/// of two holders the claim itself lets one win. An expired lease, a pause after a failure and
/// death do not stop a claim either.
fn standing(state: &State) -> Standing {
    let remaining = state.due_at.saturating_sub(pg::clock());
    if state.lease == LeaseState::Leased && state.payload_slice.is_none() && remaining > 0 {
        Standing::Leased { remaining }
    } else {
        Standing::Clear
    }
}
