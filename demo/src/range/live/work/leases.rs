//! Leases the same ids from several sessions, holds some of them for longer than the lease, and
//! completes them.
//!
//! The monotonic clock is recorded after a lease was committed and before a completion starts. If a
//! completion started after another session had acquired the lease, its token was no longer valid,
//! so it must have failed. The checker compares the clock values to find such a completion.

use std::time::Duration;

use anyhow::Result;
use rand::RngExt;
use tokio_postgres::{Client, types::Type};

use super::sessions::{monotonic_us, repeat};
use crate::range::live::{flaw::Flaw, post::Post};

/// The destination of these leases.
pub const DESTINATION: &str = "range.leases";

const SESSIONS: usize = 4;

/// The time between two new ids, in microseconds.
const NEW_ID_EVERY_US: i64 = 300_000;
/// An id is used during this number of periods of `NEW_ID_EVERY_US`.
const PERIODS: i64 = 6;

/// The statement that completes a lease.
const COMPLETE: &str = "SELECT idem_complete($1, $2, $3)";
/// The statement of the planted bug, which ignores the token.
const COMPLETE_UNFENCED: &str = "SELECT complete_unfenced($1, $2, $3)";

pub async fn run(post: &Post) -> Result<()> {
    let complete = match post.flaw {
        Some(Flaw::IgnoredToken) => COMPLETE_UNFENCED,
        _ => COMPLETE,
    };
    repeat(post, SESSIONS, async move |client: &mut Client, _| {
        lease(client, complete).await
    })
    .await
}

async fn lease(client: &mut Client, complete: &str) -> Result<()> {
    let identity = monotonic_us()? / NEW_ID_EVERY_US - rand::rng().random_range(0..PERIODS);
    let id = format!("l-{identity}");
    let lease_s = f64::from(rand::rng().random_range(50..400)) / 1e3;
    let row = client
        .query_typed_one(
            "SELECT outcome::text, token FROM idem_acquire($1, $2, make_interval(secs => $3))",
            &[
                (&id, Type::TEXT),
                (&DESTINATION, Type::TEXT),
                (&lease_s, Type::FLOAT8),
            ],
        )
        .await?;
    let pause = rand::rng().random_range(10..600);
    let leased = row.try_get::<_, &str>(0)? == "acquired";
    if leased {
        let (token, acquired): (i64, i64) = (row.try_get(1)?, monotonic_us()?);
        client
            .execute_typed(
                "INSERT INTO leased (identity, token, told_us) VALUES ($1, $2, $3)",
                &[
                    (&identity, Type::INT8),
                    (&token, Type::INT8),
                    (&acquired, Type::INT8),
                ],
            )
            .await?;
        tokio::time::sleep(Duration::from_millis(pause)).await;
        return finish(client, identity, token, complete).await;
    }
    tokio::time::sleep(Duration::from_millis(pause / 6)).await;
    Ok(())
}

async fn finish(client: &mut Client, identity: i64, token: i64, complete: &str) -> Result<()> {
    let id = format!("l-{identity}");
    let started = monotonic_us()?;
    let tx = client.transaction().await?;
    let completed = tx
        .query_typed(
            complete,
            &[
                (&id, Type::TEXT),
                (&DESTINATION, Type::TEXT),
                (&token, Type::INT8),
            ],
        )
        .await;
    match completed {
        Ok(_) => {}
        // Expected errors: the token is no longer valid, or another transaction claims the message.
        Err(error)
            if error
                .code()
                .is_some_and(|code| matches!(code.code(), "55000" | "55P03")) =>
        {
            return Ok(tx.rollback().await?);
        }
        Err(error) => return Err(error.into()),
    }
    tx.execute_typed(
        "INSERT INTO completed (identity, token, asked_us) VALUES ($1, $2, $3)",
        &[
            (&identity, Type::INT8),
            (&token, Type::INT8),
            (&started, Type::INT8),
        ],
    )
    .await?;
    Ok(tx.commit().await?)
}
