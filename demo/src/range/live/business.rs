//! Creates, writes and reads the tables of a range over a broker: those of the range in memory, and
//! further tables for the verdict.

use std::collections::BTreeMap;

use anyhow::Result;
use tokio_postgres::{Client, GenericClient, types::Type};
use uuid::Uuid;

use crate::range::{business, message::MoveTarget, observer::Published, verdict::Facts};

/// The schema of all tables.
pub const SCHEMA: &str = "range";

/// The role of consumers, which can claim messages and write the tables.
pub const CONSUMER_ROLE: &str = "range_consumer";

/// The role of relays.
pub const RELAY_ROLE: &str = "range_relay";

/// Creates the tables and the roles, and inserts the targets and the players.
pub async fn set_up(client: &Client, players: u32, positions: &[i32]) -> Result<()> {
    business::set_up(client, SCHEMA, players, positions).await?;
    client
        .batch_execute(
            "-- For the verdict: the moves that were made, and the facts that the observer received.
             CREATE TABLE moved (move uuid NOT NULL);
             CREATE TABLE heard (
                 n          bigint GENERATED ALWAYS AS IDENTITY,
                 message_id uuid NOT NULL,
                 attempt    uuid NOT NULL,
                 hit        boolean NOT NULL,
                 payload    bytea NOT NULL
             );",
        )
        .await?;
    client
        .batch_execute(&format!(
            "CREATE ROLE {CONSUMER_ROLE} LOGIN;
             CREATE ROLE {RELAY_ROLE} LOGIN;
             GRANT USAGE ON SCHEMA {SCHEMA} TO {CONSUMER_ROLE};
             GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA {SCHEMA} TO {CONSUMER_ROLE};
             SELECT idem_grant('{CONSUMER_ROLE}', 'consumer'), idem_grant('{RELAY_ROLE}', 'relay');"
        ))
        .await?;
    Ok(())
}

/// Moves a target, and records the move for the verdict.
pub async fn move_target(client: &impl GenericClient, order: &MoveTarget) -> Result<()> {
    client
        .execute_typed(
            "INSERT INTO moved (move) VALUES ($1)",
            &[(&order.order, Type::UUID)],
        )
        .await?;
    business::move_target(client, order).await
}

/// Records a fact that the observer received, also when it is a duplicate.
pub async fn hear(client: &impl GenericClient, attempt: Uuid, fact: &Published) -> Result<()> {
    client
        .execute_typed(
            "INSERT INTO heard (message_id, attempt, hit, payload) VALUES ($1, $2, $3, $4)",
            &[
                (&fact.message_id, Type::UUID),
                (&attempt, Type::UUID),
                (&fact.hit, Type::BOOL),
                (&fact.payload, Type::BYTEA),
            ],
        )
        .await?;
    Ok(())
}

/// Returns the facts that the observer received about each attempt, in order.
pub async fn heard(client: &Client) -> Result<Facts> {
    let mut facts = Facts::new();
    let rows = client
        .query(
            "SELECT attempt, message_id, hit, payload FROM heard ORDER BY n",
            &[],
        )
        .await?;
    for row in rows {
        facts.entry(row.try_get(0)?).or_default().push(Published {
            message_id: row.try_get(1)?,
            hit: row.try_get(2)?,
            payload: row.try_get(3)?,
        });
    }
    Ok(facts)
}

/// The progress of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The number of different commands that took effect.
    pub handled: u64,
    /// The number of effects that are recorded but not published, in all partitions.
    pub unpublished: u64,
    /// The number of attempts about which the observer received a fact.
    pub heard: u64,
    /// The number of attempts about which the observer received both a hit and a miss.
    pub contradictions: u64,
}

/// Reads the progress of a run.
pub async fn progress(client: &Client) -> Result<Progress> {
    let row = client
        .query_one(
            "SELECT (SELECT count(DISTINCT attempt) FROM shot)
                        + (SELECT count(DISTINCT move) FROM moved),
                    (SELECT coalesce(sum(lag_messages), 0)::bigint FROM idem.relays),
                    h.heard, h.contradictions
               FROM (SELECT count(*) AS heard, count(*) FILTER (WHERE contradicts) AS contradictions
                       FROM (SELECT bool_or(hit) AND bool_or(NOT hit) AS contradicts
                               FROM heard GROUP BY attempt) one) h",
            &[],
        )
        .await?;
    let count = |n| anyhow::Ok(u64::try_from(row.try_get::<_, i64>(n)?)?);
    Ok(Progress {
        handled: count(0)?,
        unpublished: count(1)?,
        heard: count(2)?,
        contradictions: count(3)?,
    })
}

/// Returns the number of messages that each destination has claimed.
pub async fn claimed(client: &Client) -> Result<BTreeMap<String, u64>> {
    let rows = client
        .query(
            "SELECT destination, count(*) FROM idem.inbox GROUP BY destination",
            &[],
        )
        .await?;
    rows.iter()
        .map(|row| Ok((row.try_get(0)?, u64::try_from(row.try_get::<_, i64>(1)?)?)))
        .collect()
}
