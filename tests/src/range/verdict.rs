//! What came of it: the tables and the facts, held against each other.
//!
//! The truth about an attempt is the first fact that was published about it: from then on someone
//! may have acted on it.

use std::collections::{BTreeMap, HashMap, HashSet};

use anyhow::Result;
use idem_client::Destination;
use tokio_postgres::{Client, types::Type};
use uuid::Uuid;

use super::{
    leader_board,
    message::{FireAt, Kind},
    observer::{Published, contradict},
};

/// What was said about each attempt, in order.
pub type Facts = BTreeMap<Uuid, Vec<Published>>;

/// The errors of one system. All zero is right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Attempts that both hit and missed.
    pub contradictions: usize,
    /// Players whose hits on the board are not their hits.
    pub wrong_hit_counts: usize,
    /// By how many hits the board is wrong, all players together.
    pub hits_off_by: u64,
    /// Attempts of which nobody heard, and hits of which the board did not.
    pub lost_messages: usize,
    /// Attempts whose rows are missing, double, or tell another story than the first fact (together
    /// or not at all).
    pub torn_attempts: usize,
    /// Attempts whose facts are not the same message each time: id and bytes, on idem those on
    /// record too.
    pub unequal_duplicates: usize,
}

impl Verdict {
    /// Whether there is no error.
    #[must_use]
    pub fn is_right(&self) -> bool {
        *self == Self::default()
    }
}

/// Judges what a trial has left behind: its tables, the facts that were heard, and those on record.
pub async fn judge(
    client: &Client,
    attempts: &[FireAt],
    facts: &Facts,
    recorded: &Facts,
) -> Result<Verdict> {
    let shots = shots(client).await?;
    let counted: HashSet<Uuid> = client
        .query("SELECT attempt FROM counted", &[])
        .await?
        .iter()
        .map(|row| row.try_get(0))
        .collect::<Result<_, _>>()?;
    let mut board = leader_board::read(client).await?;

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
            // What is left over in the end is what the board has too many, or too few.
            *board.entry(*player).or_default() -= 1;
            if !counted.contains(attempt) {
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
    verdict.wrong_hit_counts = board.values().filter(|&&left| left != 0).count();
    verdict.hits_off_by = board.values().map(|left| left.unsigned_abs()).sum();
    Ok(verdict)
}

/// The effects on record of each attempt, as a duplicate would be given them.
pub async fn recorded(
    client: &Client,
    targets: &Destination,
    attempts: &[FireAt],
) -> Result<Facts> {
    let mut recorded = Facts::new();
    let ids: Vec<Uuid> = attempts.iter().map(|shot| shot.attempt).collect();
    let rows = client
        .query_typed(
            "SELECT attempt, message_id, type, payload \
             FROM unnest($1) AS attempt, LATERAL idem_effects(attempt, $2)",
            &[(&ids, Type::UUID_ARRAY), (&targets.as_str(), Type::TEXT)],
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
