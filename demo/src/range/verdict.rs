//! The verdict of a trial: it compares the tables with the published facts.
//!
//! The first published fact about an attempt is the reference, because other systems may have acted
//! on it.

use std::collections::{BTreeMap, HashMap};

use anyhow::Result;
use tokio_postgres::{Client, types::Type};
use uuid::Uuid;

use super::{
    business,
    message::{FireAt, Kind},
    observer::{Published, contradict},
};

/// The published facts about each attempt, in order.
pub type Facts = BTreeMap<Uuid, Vec<Published>>;

/// The number of errors of one system, by kind. Without errors, all are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The attempts that both hit and missed according to their facts.
    pub contradictions: usize,
    /// The players with a wrong number of hits on the board.
    pub wrong_hit_counts: usize,
    /// The sum of the differences between the board and the real hits, over all players.
    pub hits_off_by: u64,
    /// The attempts without a published fact, and the hits that the board did not count.
    pub lost_messages: usize,
    /// The attempts with more than one row, and the hits that the board counted more than once.
    pub doubled_messages: usize,
    /// The attempts with rows that are missing, double, or different from the first fact, which
    /// means that row and fact did not commit together.
    pub torn_attempts: usize,
    /// The attempts with facts that differ in message id or bytes. For idem, the recorded facts are
    /// compared as well.
    pub unequal_duplicates: usize,
}

impl Verdict {
    /// Returns whether there is no error.
    #[must_use]
    pub fn is_right(&self) -> bool {
        *self == Self::default()
    }
}

/// Compares the tables of a trial, the published facts and the recorded facts, and counts the
/// errors.
pub async fn judge(
    client: &Client,
    attempts: &[FireAt],
    facts: &Facts,
    recorded: &Facts,
) -> Result<Verdict> {
    let shots = shots(client).await?;
    let counted = times(
        client,
        "SELECT attempt, count(*) FROM counted GROUP BY attempt",
    )
    .await?;
    let mut board = business::hits(client).await?;

    let mut verdict = Verdict::default();
    for FireAt {
        attempt, player, ..
    } in attempts
    {
        let Some(told) = facts.get(attempt) else {
            verdict.lost_messages += 1;
            continue;
        };
        let truth = &told[0];
        if contradict(told) {
            verdict.contradictions += 1;
        }
        if truth.hit {
            // Subtract the real hits from the board. After the loop, the number of each player is
            // the difference between the two.
            *board.entry(*player).or_default() -= 1;
            if !counted.contains_key(attempt) {
                verdict.lost_messages += 1;
            }
        }
        if shots.get(attempt).map(Vec::as_slice) != Some(&[truth.hit]) {
            verdict.torn_attempts += 1;
        }
        let on_record = recorded.get(attempt).into_iter().flatten();
        if told.iter().chain(on_record).any(|fact| fact != truth) {
            verdict.unequal_duplicates += 1;
        }
    }
    let doubled_shots = shots.values().filter(|hits| hits.len() > 1).count();
    let doubled_counts = counted.values().filter(|&&times| times > 1).count();
    verdict.doubled_messages = doubled_shots + doubled_counts;
    verdict.wrong_hit_counts = board.values().filter(|&&left| left != 0).count();
    verdict.hits_off_by = board.values().map(|left| left.unsigned_abs()).sum();
    Ok(verdict)
}

/// Returns the recorded effects of each attempt, as a duplicate reads them.
pub async fn recorded(client: &Client, targets: &str, attempts: &[FireAt]) -> Result<Facts> {
    let mut recorded = Facts::new();
    let ids: Vec<Uuid> = attempts.iter().map(|shot| shot.attempt).collect();
    let rows = client
        .query_typed(
            "SELECT attempt, message_id, type, payload \
             FROM unnest($1) AS attempt, LATERAL idem_effects(attempt, $2)",
            &[(&ids, Type::UUID_ARRAY), (&targets, Type::TEXT)],
        )
        .await?;
    for row in rows {
        recorded
            .entry(row.try_get("attempt")?)
            .or_default()
            .push(Published {
                message_id: row.try_get("message_id")?,
                hit: row.try_get::<_, &str>("type")? == Kind::TargetHit.name(),
                payload: row.try_get("payload")?,
            });
    }
    Ok(recorded)
}

/// Returns the result of a query for ids and their counts.
pub async fn times(client: &Client, sql: &str) -> Result<HashMap<Uuid, i64>> {
    let rows = client.query(sql, &[]).await?;
    rows.iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
        .collect()
}

async fn shots(client: &Client) -> Result<HashMap<Uuid, Vec<bool>>> {
    let mut shots: HashMap<Uuid, Vec<bool>> = HashMap::new();
    for row in client.query("SELECT attempt, hit FROM shot", &[]).await? {
        shots
            .entry(row.try_get(0)?)
            .or_default()
            .push(row.try_get(1)?);
    }
    Ok(shots)
}
