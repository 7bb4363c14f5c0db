//! The verdict of a run over a broker: it compares the tables with the facts that the observer
//! received.

use anyhow::Result;
use tokio_postgres::Client;
use uuid::Uuid;

use super::{business, work};
use crate::range::{
    Verdict,
    message::Kind,
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
    /// The hits that the board counted more than once.
    pub counted_again: usize,
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
            "SELECT (SELECT coalesce(sum(parked), 0)::bigint FROM idem.relays)
                    + (SELECT count(*) FROM idem.dead_letters)",
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
