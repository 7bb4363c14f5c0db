//! The note that says whether messages are pending.

use anyhow::{Result, ensure};

use crate::{Session, until};

/// Runs maintenance until the note says that no message is pending, so that claims skip the check
/// for pending messages.
pub async fn until_none(session: &Session) -> Result<()> {
    until("no message is pending", async || {
        session.run("CALL idem_maintain()").await?;
        Ok(session.text("SELECT idem.pending_presence()").await? == "none")
    })
    .await
}

/// Leases a message, and checks that a claim, a small batch and a batch of 11 ids fail with 55P03.
/// If no message were pending, the claims of the larger batch would be inserted together.
///
/// # Errors
/// Fails when one of them does not fail with 55P03.
pub async fn check_leased_message_is_found(session: &Session) -> Result<()> {
    session.run("SELECT idem_acquire('leased', 'd')").await?;
    for new in [0, 10] {
        let sql = format!(
            "SELECT idem_try_claim_batch(
                 ARRAY(SELECT 'new ' || n FROM generate_series(1, {new}) n) || ARRAY['leased'],
                 'd')"
        );
        let refusal = session.refused(&sql).await?;
        ensure!(refusal.sqlstate == "55P03", "{new} new ids: {refusal:?}");
    }
    let refusal = session
        .refused("SELECT idem_try_claim('leased', 'd')")
        .await?;
    ensure!(refusal.sqlstate == "55P03", "{refusal:?}");
    Ok(())
}
