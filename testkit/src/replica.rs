//! A physical standby that replays the WAL of its primary.

use anyhow::Result;

use super::{Session, until};

/// Waits until the standby has replayed what the primary has written.
pub async fn caught_up(primary: &Session, standby: &Session) -> Result<()> {
    let written = primary.text("SELECT pg_current_wal_lsn()").await?;
    let replayed = format!("SELECT pg_last_wal_replay_lsn() >= '{written}'");
    until(
        "the standby has replayed what the primary wrote",
        async || Ok(standby.text(&replayed).await? == "t"),
    )
    .await
}
