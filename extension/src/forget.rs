//! Forgets a message: its claim, and its external calls with what was recorded as their results.
//! The next execution of the message begins as the first one did.
//!
//! The claim is deleted from each slice, again and again until nothing is deleted and the slices
//! are the same as before: while a ring opens a segment or a slice, a claim has two rows. Until it
//! has deleted a row, it waits for a claim in progress. Later such a claim is a new one, or its
//! claimer loses and waits for this transaction.

use crate::claim;
use crate::errors::Result;
use crate::journal;
use idem_core::MessageId;

/// Returns whether there was a claim. Without a claim the external calls are kept, because they
/// belong to a message that is being processed. Fails with 55000 if this transaction made the
/// claim.
pub fn forget(id: MessageId, destination: &str) -> Result<bool> {
    let is_forgotten = claim::forget(id, destination)?;
    if is_forgotten {
        journal::forget(id, destination)?;
    }
    Ok(is_forgotten)
}
