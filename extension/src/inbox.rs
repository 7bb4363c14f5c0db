//! Reads the present state of an identity in the inbox.

use crate::claim_row::column;
use crate::errors::Result;
use crate::filters::ClaimHashes;
use crate::identity::Identity;
use crate::pg::{FoundIn, Lookup, Writer, find_in, look_again};
use crate::ring::Entered;
use crate::slices::{Probed, slices_of};
use pgrx::pg_sys;
use std::sync::atomic::{Ordering::SeqCst, fence};

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

/// The slices in which a claim can be.
pub struct Inbox(Vec<Probed>);

impl Inbox {
    /// Opens the slices whose filter does not exclude the claim now. `look` opens another slice
    /// only if its filter changes.
    pub fn open(identity: &Identity, rings: &Entered) -> Self {
        let slices = slices_of(&identity.destination, rings);
        let hash = ClaimHashes::new().of(identity);
        for slice in slices.iter().filter(|slice| !slice.excludes(hash)) {
            slice.table();
        }
        Inbox(slices)
    }

    /// Checks the slices once, without waiting. A claimer adds its claim to the filter, and then
    /// looks for pending messages. So the caller first writes its pending message, and this
    /// function reads the filters after that.
    pub fn look(&self, identity: &Identity) -> Result<InboxState> {
        let hash = ClaimHashes::new().of(identity);
        fence(SeqCst);
        let slices = self.0.iter().filter(|slice| !slice.excludes(hash));
        let slices = slices.map(|slice| Lookup::in_segments(slice.table()));
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
