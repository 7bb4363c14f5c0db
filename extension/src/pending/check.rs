//! Checks whether a pending message stops a claim. A claimer checks before it inserts its row, so
//! that it writes nothing if it finds a lease. It checks again after the insert, and the second
//! check decides.

use super::row::{LeaseState, State, column};
use super::{presence, tables};
use crate::errors::Result;
use crate::identity::Identity;
use crate::pg::{self, Hold, Lookup, Settled, Table, look_again};
use crate::ring::Entered;
use crate::wake::wake_consumers;
use std::cell::OnceCell;

/// The result of the check for a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PendingState {
    /// There is no pending message, or it was deleted, or it does not stop the claim.
    Clear,
    /// Another process holds a lease on the message, for the remaining time in microseconds.
    Leased { remaining: i64 },
    /// Another transaction is changing the pending message, and the claimer does not wait.
    InProgress,
}

/// Checks the pending messages for the claims of one statement.
pub struct PendingCheck<'a> {
    rings: &'a Entered,
    table: OnceCell<Table>,
}

impl<'a> PendingCheck<'a> {
    pub fn new(rings: &'a Entered) -> Self {
        PendingCheck {
            rings,
            table: OnceCell::new(),
        }
    }

    /// Looks at the pending message for a claimer that has not inserted its claim. If `wait` is
    /// true, waits until no other transaction is writing the message. Locks no row.
    pub fn look(&self, identity: &Identity, wait: bool) -> Result<PendingState> {
        if !presence::is_noted() {
            return Ok(PendingState::Clear);
        }
        let mut row = Lookup::new(self.table()?, 2);
        Ok(look_at(&mut row, identity, wait)?.unwrap_or(PendingState::Clear))
    }

    /// Deletes the pending message for a claimer that has inserted its claim, unless a lease
    /// protects the message. Locks no row of a leased message, because the holder changes it.
    pub fn remove_unless_leased(&self, identity: &Identity, wait: bool) -> Result<PendingState> {
        if !presence::may_exist() {
            return Ok(PendingState::Clear);
        }
        let table = self.table()?;
        let mut row = Lookup::new(table, 2);
        look_again(|| {
            match look_at(&mut row, identity, wait) {
                Ok(Some(PendingState::Clear)) => (),
                Ok(seen) => return Some(Ok(seen.unwrap_or(PendingState::Clear))),
                Err(error) => return Some(Err(error)),
            }
            if row.hold_found(wait)? != Hold::Held {
                return Some(Ok(PendingState::InProgress));
            }
            // Keep the lock on the table until the end of the transaction. Otherwise a rotation
            // could copy the row before its deletion is committed.
            table.keep_lock();
            delete_pending(&mut row);
            Some(Ok(PendingState::Clear))
        })
    }

    /// Releases the lock on the table, so that the rotation of the table does not have to wait for
    /// a transaction for which the claimer waits. A lock under which a row was deleted is kept.
    pub fn unlock(&mut self) {
        self.table.take();
    }

    fn table(&self) -> Result<&Table> {
        if let Some(table) = self.table.get() {
            return Ok(table);
        }
        let table = tables::try_current(self.rings)?;
        Ok(self.table.get_or_init(|| table))
    }
}

/// Returns whether the pending row stops a claim; `None` if there is no pending row. If `wait` is
/// true, waits until no other transaction is writing the row.
fn look_at(row: &mut Lookup, identity: &Identity, wait: bool) -> Result<Option<PendingState>> {
    Ok(match row.settle(&mut identity.keys(), wait) {
        Settled::Nothing => None,
        Settled::Busy => Some(PendingState::InProgress),
        Settled::Row => {
            identity.check(row, column::ID)?;
            Some(state_for_claim(&State::read(row)))
        }
    })
}

/// Deletes the locked pending row, because its message is done. The next message with the same
/// ordering key becomes available.
pub fn delete_pending(row: &mut Lookup) {
    let has_key = row.column(column::ORDER_KEY).is_some();
    row.delete();
    if has_key {
        wake_consumers();
    }
}

/// Returns `Leased` if an unexpired lease of `idem_acquire` protects the message. The holder of a
/// lease of `idem_next` completes the message with a claim, so such a message is `Clear`. Expired,
/// waiting and dead messages are `Clear` too.
fn state_for_claim(state: &State) -> PendingState {
    let remaining = state.due_at.saturating_sub(pg::clock());
    if state.lease == LeaseState::Leased && state.stops_claims && remaining > 0 {
        PendingState::Leased { remaining }
    } else {
        PendingState::Clear
    }
}
