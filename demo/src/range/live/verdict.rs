//! The verdict of a run over a broker: it compares the tables with the facts that the observer
//! received.

use anyhow::Result;
use tokio_postgres::Client;

use super::business;
use crate::range::{
    Verdict,
    message::{FireAt, Kind},
    traffic::Traffic,
    verdict::{self, Facts, times},
};

/// The number of errors of one run, by kind. Without errors, all are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveVerdict {
    /// The errors that the range in memory also counts.
    pub range: Verdict,
    /// The attempts without exactly one recorded fact.
    pub not_one_fact: usize,
    /// The moves that were not made exactly once.
    pub moves_not_once: usize,
    /// The effects that a relay parked, and the dead letters.
    pub given_up: usize,
}

impl LiveVerdict {
    /// Returns whether there is no error.
    #[must_use]
    pub fn is_right(&self) -> bool {
        *self == Self::default()
    }
}

/// Counts the errors of a run after its end. Also returns the facts that the observer received.
///
/// - `recorded`: the recorded effects of all attempts.
/// - `retained`: the attempts whose effects must be retained.
pub async fn judge(
    client: &Client,
    traffic: &Traffic,
    recorded: &Facts,
    retained: &[FireAt],
) -> Result<(LiveVerdict, Facts)> {
    let facts = business::heard(client).await?;
    let range = verdict::judge(client, &traffic.attempts, &facts, recorded).await?;
    let has_one = |shot: &FireAt| recorded.get(&shot.attempt).is_some_and(|r| r.len() == 1);
    let moved = times(client, "SELECT move, count(*) FROM moved GROUP BY move").await?;
    let moves = traffic
        .commands
        .iter()
        .filter(|command| command.kind == Kind::MoveTarget);
    let given_up: i64 = client
        .query_one(
            "SELECT (SELECT coalesce(sum(parked), 0)::bigint FROM idem.relays)
                    + (SELECT count(*) FROM idem.dead_letters)",
            &[],
        )
        .await?
        .try_get(0)?;
    let verdict = LiveVerdict {
        range,
        not_one_fact: retained.iter().filter(|shot| !has_one(shot)).count(),
        moves_not_once: moves
            .filter(|command| moved.get(&command.id) != Some(&1))
            .count(),
        given_up: usize::try_from(given_up)?,
    };
    Ok((verdict, facts))
}
