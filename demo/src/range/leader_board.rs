//! The leader board, which shows the number of hits of each player.

use std::collections::BTreeMap;

use anyhow::Result;
use tokio_postgres::{Client, GenericClient, types::Type};

use super::message::Fact;

/// Counts a hit. One statement writes both tables, so that the list of counted attempts always
/// agrees with the board.
pub async fn count(client: &impl GenericClient, fact: &Fact) -> Result<()> {
    client
        .execute_typed(
            "WITH noted AS (INSERT INTO counted (attempt) VALUES ($2))
             UPDATE board SET hits = hits + 1 WHERE player = $1",
            &[(&fact.player, Type::INT4), (&fact.attempt, Type::UUID)],
        )
        .await?;
    Ok(())
}

/// Returns the number of hits of each player, as the board shows it.
pub async fn read(client: &Client) -> Result<BTreeMap<i32, i64>> {
    client
        .query("SELECT player, hits::bigint FROM board", &[])
        .await?
        .iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
        .collect()
}
