//! One client: it claims, leases, receives and processes due messages at every isolation level.
//! Some transactions are rolled back, and some leases are abandoned.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error, IsolationLevel, Transaction};

use super::Arena;
use crate::line::{connect, expect_kill};

/// The number of identities in use at a time.
const WINDOW: i64 = 24;
/// The mean number of attempts at each identity.
const TRIES: i64 = 6;

pub(super) async fn work(arena: Arc<Arena>, number: u64) -> Result<()> {
    let mut rng = SmallRng::seed_from_u64(arena.config.seed.wrapping_add(number));
    while arena.is_open() {
        let mut client = connect(&arena.url).await?;
        if let Err(error) = client.batch_execute("SET application_name = 'racer'").await {
            expect_kill(error)?;
            continue;
        }
        while arena.is_open() {
            let begun = arena.begun.fetch_add(1, Ordering::Relaxed);
            let identity = begun / TRIES + rng.random_range(0..WINDOW);
            let done = match rng.random_range(0..10) {
                0..4 => claim(&mut client, identity, &mut rng).await,
                4..8 => {
                    lease(
                        &mut client,
                        identity,
                        arena.config.acquire_function,
                        &mut rng,
                    )
                    .await
                }
                8 => receive(&mut client, identity, &mut rng).await,
                _ => claim_due_messages(&mut client, &mut rng).await,
            };
            if let Err(error) = done {
                expect_kill(error)?;
                break;
            }
        }
    }
    Ok(())
}

async fn begin<'a>(client: &'a mut Client, rng: &mut SmallRng) -> Result<Transaction<'a>, Error> {
    let level = [
        IsolationLevel::ReadCommitted,
        IsolationLevel::RepeatableRead,
        IsolationLevel::Serializable,
    ][rng.random_range(0..3)];
    let transaction = client
        .build_transaction()
        .isolation_level(level)
        .start()
        .await?;
    // Take the snapshot here, so that it is older than the statements that follow.
    transaction.batch_execute("SELECT 1").await?;
    pause(rng, 3).await;
    Ok(transaction)
}

async fn end(transaction: Transaction<'_>, rng: &mut SmallRng) -> Result<bool, Error> {
    pause(rng, 4).await;
    if rng.random_bool(0.15) {
        transaction.rollback().await?;
        return Ok(false);
    }
    transaction.commit().await?;
    Ok(true)
}

async fn pause(rng: &mut SmallRng, most_ms: u64) {
    let ms = rng.random_range(0..=most_ms);
    if ms > 0 {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}

/// Returns whether the error is an expected result: the lease is lost, or another client holds a
/// lease of the message.
fn is_expected(error: &Error) -> bool {
    error
        .code()
        .is_some_and(|code| matches!(code.code(), "55000" | "55P03"))
}

async fn claim(client: &mut Client, identity: i64, rng: &mut SmallRng) -> Result<(), Error> {
    let transaction = begin(client, rng).await?;
    let sql = if rng.random_bool(0.5) {
        "SELECT idem_try_claim($1, 'race')"
    } else {
        "SELECT outcome = 'claimed' FROM idem_claim($1, 'race', wait => false)"
    };
    match transaction.query_one(sql, &[&id(identity)]).await {
        Ok(row) if row.get(0) => {}
        Ok(_) => return transaction.rollback().await,
        Err(error) if is_expected(&error) => return transaction.rollback().await,
        Err(error) => return Err(error),
    }
    handled(&transaction, identity, None).await?;
    end(transaction, rng).await?;
    Ok(())
}

async fn lease(
    client: &mut Client,
    identity: i64,
    acquire: &str,
    rng: &mut SmallRng,
) -> Result<(), Error> {
    let lease_ms = rng.random_range(1..60_i32);
    let transaction = begin(client, rng).await?;
    let sql = format!(
        "WITH asked AS MATERIALIZED (SELECT clock_timestamp() AS at)
         SELECT outcome::text, token, asked.at::text
           FROM asked, {acquire}($1, 'race', $2::int4 * interval '1 ms')"
    );
    let row = match transaction
        .query_one(&sql, &[&id(identity), &lease_ms])
        .await
    {
        Ok(row) => row,
        // The broken variant writes with the snapshot of its transaction, so it may fail with
        // 40001. This is not the bug that the run must catch.
        Err(error)
            if acquire != "idem_acquire"
                && error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE) =>
        {
            return transaction.rollback().await;
        }
        Err(error) => return Err(error),
    };
    if !matches!(row.get::<_, &str>(0), "acquired" | "exhausted") {
        return transaction.rollback().await;
    }
    let (token, asked): (i64, String) = (row.get(1), row.get(2));
    transaction
        .execute(
            "INSERT INTO leased
             VALUES ($1, $2, $3::text::timestamptz, clock_timestamp(), $4::int4 * interval '1 ms')",
            &[&identity, &token, &asked, &lease_ms],
        )
        .await?;
    if !end(transaction, rng).await? {
        return Ok(());
    }
    // The pause is sometimes longer than the lease.
    pause(rng, 60).await;
    match rng.random_range(0..10) {
        0..2 => Ok(()),
        2..4 => release(client, identity, token).await,
        _ => complete(client, identity, token, rng).await,
    }
}

async fn release(client: &mut Client, identity: i64, token: i64) -> Result<(), Error> {
    let transaction = client.transaction().await?;
    transaction
        .execute(
            "INSERT INTO released VALUES ($1, $2, clock_timestamp())",
            &[&identity, &token],
        )
        .await?;
    match transaction
        .query(
            "SELECT idem_release($1, 'race', $2)",
            &[&id(identity), &token],
        )
        .await
    {
        Ok(_) => transaction.commit().await,
        Err(error) if is_expected(&error) => transaction.rollback().await,
        Err(error) => Err(error),
    }
}

async fn complete(
    client: &mut Client,
    identity: i64,
    token: i64,
    rng: &mut SmallRng,
) -> Result<(), Error> {
    let transaction = begin(client, rng).await?;
    match transaction
        .query(
            "SELECT idem_complete($1, 'race', $2)",
            &[&id(identity), &token],
        )
        .await
    {
        Ok(_) => {}
        Err(error) if is_expected(&error) => return transaction.rollback().await,
        Err(error) => return Err(error),
    }
    handled(&transaction, identity, Some(token)).await?;
    end(transaction, rng).await?;
    Ok(())
}

async fn receive(client: &mut Client, identity: i64, rng: &mut SmallRng) -> Result<(), Error> {
    let transaction = begin(client, rng).await?;
    let row = transaction
        .query_one(
            "SELECT idem_receive($1, 'race', '1'::jsonb)",
            &[&id(identity)],
        )
        .await?;
    if row.get(0) {
        transaction
            .execute("INSERT INTO received VALUES ($1)", &[&identity])
            .await?;
    }
    end(transaction, rng).await?;
    Ok(())
}

async fn claim_due_messages(client: &mut Client, rng: &mut SmallRng) -> Result<(), Error> {
    let due = client
        .query("SELECT id FROM idem_next('race', 3, '50 ms')", &[])
        .await?;
    for row in due {
        let id: String = row.get(0);
        if let Ok(identity) = id.trim_start_matches("m ").parse() {
            claim(client, identity, rng).await?;
        }
    }
    Ok(())
}

async fn handled(
    transaction: &Transaction<'_>,
    identity: i64,
    token: Option<i64>,
) -> Result<(), Error> {
    transaction
        .execute(
            "INSERT INTO handled VALUES ($1, $2, clock_timestamp())",
            &[&identity, &token],
        )
        .await?;
    Ok(())
}

fn id(identity: i64) -> String {
    format!("m {identity}")
}
