//! Reads the present state of an identity in the inbox.

use crate::errors::Result;
use crate::identity::Identity;
use crate::pg::{FoundIn, Lookup, Table, Writer, find_in, look_again};
use crate::ring::Entered;
use crate::slices::slices_of;
use pgrx::pg_sys;

/// The columns of a slice of the inbox, counted from 1.
pub mod column {
    pub const CLAIMED_AT: i32 = 2;
    pub const ID: i32 = 4;
    pub const FINGERPRINT: i32 = 5;
}

/// Returns the time of the found claim.
pub fn claimed_at(claim: &Lookup) -> pg_sys::TimestampTz {
    claim
        .column(column::CLAIMED_AT)
        .map_or(0, |d| d.value() as i64)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InboxState {
    Free,
    Claimed,
    /// Claimed by a running transaction.
    InProgress(Writer),
}

/// The slices in which a claim can be, open for look-ups.
pub struct Inbox(Vec<Table>);

impl Inbox {
    pub fn open(identity: &Identity, rings: &Entered) -> Self {
        Inbox(
            slices_of(&identity.destination, rings)
                .into_iter()
                .map(Table::for_reading)
                .collect(),
        )
    }

    /// Checks the slices once, without waiting.
    pub fn look(&self, identity: &Identity) -> Result<InboxState> {
        let slices = self.0.iter().map(|slice| Lookup::insert_only(slice, 2));
        Ok(match find_in(slices, &mut identity.keys()) {
            FoundIn::Nothing => InboxState::Free,
            FoundIn::Row(claim) => {
                identity.check(&claim, column::ID)?;
                claim.wait_for_flush();
                InboxState::Claimed
            }
            FoundIn::InProgress(writer) => InboxState::InProgress(writer),
        })
    }

    /// Returns whether the message is claimed. Waits until a claim in progress has ended. The
    /// caller must hold no lock that the claim may wait for.
    pub fn is_claimed(&self, identity: &Identity) -> Result<bool> {
        look_again(|| match self.look(identity) {
            Ok(InboxState::InProgress(writer)) => {
                writer.wait();
                None
            }
            seen => Some(seen.map(|seen| seen == InboxState::Claimed)),
        })
    }
}
