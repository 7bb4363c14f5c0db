//! What came of it, by the tables and by what the observer heard.

use std::collections::HashMap;

use anyhow::Result;
use tokio_postgres::Client;
use uuid::Uuid;

use super::{business, work};
use crate::range::{
    Verdict,
    message::Kind,
    traffic::Traffic,
    verdict::{self, Facts},
};

/// The errors of one run. All zero is right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveVerdict {
    /// Those that any range can have.
    pub range: Verdict,
    /// Attempts that do not have exactly one fact on record.
    pub not_one_fact: usize,
    /// Moves that were not made exactly once.
    pub moves_not_once: usize,
    /// Hits that the board counted more than once.
    pub counted_again: usize,
    /// Messages that were given up: by the relay, or by a consumer.
    pub given_up: usize,
}

impl LiveVerdict {
    /// Whether there is no error.
    #[must_use]
    pub fn is_right(&self) -> bool {
        *self == Self::default()
    }
}

/// Judges what a run has left behind.
pub async fn judge(client: &Client, traffic: &Traffic) -> Result<(LiveVerdict, Facts)> {
    let facts = business::heard(client).await?;
    let recorded = verdict::recorded(client, &work::targets()?, &traffic.attempts).await?;
    let range = verdict::judge(client, &traffic.attempts, &facts, &recorded).await?;
    let one_fact = |attempt: &Uuid| recorded.get(attempt).is_some_and(|facts| facts.len() == 1);
    let moved = times(client, "SELECT move, count(*) FROM moved GROUP BY move").await?;
    let counted = times(
        client,
        "SELECT attempt, count(*) FROM counted GROUP BY attempt",
    )
    .await?;
    let given_up: i64 = client
        .query_one(
            "SELECT (SELECT coalesce(sum(parked), 0)::bigint FROM idem.relays) + (SELECT count(*) FROM idem.dead_letters)",
            &[],
        )
        .await?
        .try_get(0)?;
    let verdict = LiveVerdict {
        range,
        not_one_fact: traffic
            .attempts
            .iter()
            .filter(|shot| !one_fact(&shot.attempt))
            .count(),
        moves_not_once: traffic
            .commands
            .iter()
            .filter(|command| {
                command.kind == Kind::MoveTarget && moved.get(&command.id) != Some(&1)
            })
            .count(),
        counted_again: counted.values().filter(|&&times| times > 1).count(),
        given_up: usize::try_from(given_up)?,
    };
    Ok((verdict, facts))
}

pub(crate) async fn times(client: &Client, sql: &str) -> Result<HashMap<Uuid, i64>> {
    let rows = client.query(sql, &[]).await?;
    rows.iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
        .collect()
}
