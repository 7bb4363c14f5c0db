//! Forgets a message: its claim, and its external calls with what was recorded as their results.
//! The next execution of the message begins as the first one did.

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
