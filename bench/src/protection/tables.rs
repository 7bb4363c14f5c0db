//! The tables of each contestant, and the number of rows in them.

use std::fmt;

use anyhow::{Context as _, Result};
use deadpool_postgres::Pool;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, NoTls};

use super::Contestant;
use super::handler::Handler;
use crate::search_path;
use crate::{inbox, server};

/// The outbox that an application would write itself. A relay would delete its rows after it has
/// published them.
const OUTBOX: &str = "CREATE TABLE outbox (
    seq        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message_id uuid        NOT NULL DEFAULT gen_random_uuid(),
    topic      text        NOT NULL,
    key        text,
    type       text,
    payload    jsonb       NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
)";

/// Inserts an outgoing message: topic, key, type, payload.
pub const INSERT_OUTBOX: &str =
    "INSERT INTO outbox (topic, key, type, payload) VALUES ($1, $2, $3, $4)";

/// The destination of the claims that are retained before the rounds.
const RETAINED: &str = "cost.retained";
/// The number of claims that one call makes.
const BATCH: u32 = 100_000;

/// Replaces the tables of all contestants, and makes `retained` claims on both sides that have an
/// inbox, at the same time. Then writes everything to the disk.
pub async fn fill(database_url: &str, retained: u32) -> Result<()> {
    let claims = |claims| async move { claim(&connect(database_url).await?, claims).await };
    tokio::try_join!(
        async {
            let client = connect(database_url).await?;
            for contestant in Contestant::ALL {
                create(&client, contestant, retained).await?;
            }
            Ok(())
        },
        // Two sessions, because the other side is filled faster.
        claims(retained / 2),
        claims(retained - retained / 2),
    )?;
    let client = connect(database_url).await?;
    client.batch_execute("VACUUM (ANALYZE)").await?;
    client.batch_execute("CHECKPOINT").await?;
    Ok(())
}

async fn connect(database_url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(database_url, NoTls)
        .await
        .context("cannot connect to the database")?;
    // When the connection fails, the next statement of the client returns the error.
    tokio::spawn(connection);
    Ok(client)
}

/// Makes this number of claims with idem.
async fn claim(client: &Client, claims: u32) -> Result<()> {
    for first in (0..claims).step_by(BATCH as usize) {
        let batch = BATCH.min(claims - first);
        client
            .batch_execute(&format!(
                "SELECT count(*) FROM unnest(idem_try_claim_uuid_batch(
                     ARRAY(SELECT gen_random_uuid() FROM generate_series(1, {batch})),
                     '{RETAINED}'))"
            ))
            .await?;
    }
    Ok(())
}

/// Replaces the tables of a contestant. The times of the retained claims are those of a week.
async fn create(client: &Client, contestant: Contestant, retained: u32) -> Result<()> {
    let schema = contestant.schema();
    client
        .batch_execute(&format!(
            "SET client_min_messages = warning;
             DROP SCHEMA IF EXISTS {schema} CASCADE;
             CREATE SCHEMA {schema};"
        ))
        .await?;
    search_path::put_first(client, schema).await?;
    for statement in server::account_statements() {
        client.batch_execute(&statement).await?;
    }
    if contestant == Contestant::ByHand {
        client.batch_execute(inbox::TABLE).await?;
        client
            .batch_execute(&format!(
                "INSERT INTO inbox
                 SELECT gen_random_uuid()::text, '{RETAINED}',
                        now() - interval '7 days' * ({retained} - n) / {retained}
                   FROM generate_series(1, {retained}) n"
            ))
            .await?;
        for statement in inbox::INDEXES.into_iter().chain([OUTBOX]) {
            client.batch_execute(statement).await?;
        }
    }
    Ok(())
}

/// The rows that a contestant has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    updates: i64,
    claims: i64,
    outgoing: i64,
}

impl Written {
    /// Returns the rows that a contestant must have written after `messages` messages.
    pub fn expected(contestant: Contestant, messages: u64, outgoing: bool) -> Result<Self> {
        let messages = i64::try_from(messages)?;
        let protected = match contestant {
            Contestant::BusinessAlone => 0,
            Contestant::ByHand | Contestant::Idem => messages,
        };
        Ok(Self {
            updates: messages,
            claims: protected,
            outgoing: if outgoing { protected } else { 0 },
        })
    }

    /// Counts the rows of a contestant.
    pub async fn read(pool: &Pool, contestant: Contestant, handler: &Handler) -> Result<Self> {
        let (claims, outgoing) = match contestant {
            Contestant::BusinessAlone => ("SELECT 0::int8", "SELECT 0::int8"),
            Contestant::ByHand => (
                "SELECT count(*) FROM inbox WHERE destination = $1",
                "SELECT count(*) FROM outbox WHERE topic = $2",
            ),
            Contestant::Idem => (
                "SELECT count(*) FROM idem.inbox WHERE destination = $1",
                "SELECT count(*) FROM idem.outbox_row WHERE topic = $2",
            ),
        };
        let row = pool
            .get()
            .await?
            .query_typed_one(
                // The queries of some contestants do not contain the two parameters, so the last
                // condition uses both.
                &format!(
                    "SELECT ({}), ({claims}), ({outgoing}) WHERE $1 <> $2",
                    server::UPDATES
                ),
                &[
                    (&handler.destination(), Type::TEXT),
                    (&handler.topic(), Type::TEXT),
                ],
            )
            .await?;
        Ok(Self {
            updates: row.try_get(0)?,
            claims: row.try_get(1)?,
            outgoing: row.try_get(2)?,
        })
    }
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} updates, {} claims and {} outgoing messages",
            self.updates, self.claims, self.outgoing
        )
    }
}
