//! The note that says whether messages are pending.

use anyhow::Result;

use crate::{Session, until};

/// Runs maintenance until the note says that no message is pending, so that claims skip the check
/// for pending messages.
///
/// # Errors
/// Fails when the server returns an error, or when a message stays pending.
pub async fn until_none(session: &Session) -> Result<()> {
    until("no message is pending", async || {
        session.run("CALL idem_maintain()").await?;
        Ok(session.text("SELECT idem.pending_presence()").await? == "none")
    })
    .await
}
