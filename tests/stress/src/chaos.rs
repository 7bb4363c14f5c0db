//! The faults of a run: sessions and workers are terminated, backends are killed, the server
//! recovers, and the destination moves from ring to ring.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::line::{connect, expect_kill};
use super::run::Arena;

/// The mean time between two faults, most of which are terminations.
const BETWEEN_FAULTS: Duration = Duration::from_millis(300);
/// Every fault with a number that is a multiple of this value is a crash.
const CRASH_EVERY: u64 = 15;
/// The longest time that a recovery may take.
const RECOVERY: Duration = Duration::from_secs(60);

/// The time between two moves of the destination.
const BETWEEN_MOVES: Duration = Duration::from_millis(1_000);

/// Selects a random session of a client or a random process of the worker.
const VICTIM: &str = "SELECT pid FROM pg_stat_activity \
    WHERE pid <> pg_backend_pid() AND (datname = current_database() OR backend_type LIKE 'idem%') \
    ORDER BY random() LIMIT 1";

/// Injects faults until the run ends.
pub async fn strike(arena: Arc<Arena>) -> Result<()> {
    let mut rng = SmallRng::seed_from_u64(!arena.config.seed);
    let mut faults = 0;
    while arena.is_open() {
        let client = connect(&arena.url).await?;
        loop {
            tokio::time::sleep(BETWEEN_FAULTS.mul_f64(rng.random_range(0.5..1.5))).await;
            if !arena.is_open() {
                break;
            }
            faults += 1;
            let injected = if faults % CRASH_EVERY == 0 {
                crash(&arena, &client).await
            } else {
                terminate(&arena, &client).await
            };
            if let Err(error) = injected {
                expect_kill(error.downcast()?)?;
                break;
            }
        }
    }
    Ok(())
}

async fn terminate(arena: &Arena, client: &tokio_postgres::Client) -> Result<()> {
    let terminated = client
        .execute(
            &format!("SELECT pg_terminate_backend(pid) FROM ({VICTIM}) v"),
            &[],
        )
        .await?;
    arena
        .counts
        .terminated
        .fetch_add(terminated, Ordering::Relaxed);
    Ok(())
}

/// Kills a backend with SIGKILL and waits until the server has recovered.
async fn crash(arena: &Arc<Arena>, client: &tokio_postgres::Client) -> Result<()> {
    let Some(victim) = client.query_opt(VICTIM, &[]).await? else {
        return Ok(());
    };
    let pid: i32 = victim.try_get(0)?;
    let cluster = Arc::clone(&arena.cluster);
    tokio::task::spawn_blocking(move || {
        cluster.crash_backend(pid)?;
        cluster.wait_until_ready(RECOVERY)
    })
    .await?
    .context("the server did not recover after a crash")?;
    arena.counts.crashed.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Moves the destination back and forth between the rings `standard` and `long` until the run ends.
pub async fn move_destination(arena: Arc<Arena>) -> Result<()> {
    let retention = arena.config.retention;
    let mut keep = [retention, retention.mul_f64(1.2)];
    while arena.is_open() {
        let client = connect(&arena.url).await?;
        while arena.is_open() {
            tokio::time::sleep(BETWEEN_MOVES).await;
            let next = keep[0].as_millis();
            let moved = client
                .batch_execute(&format!(
                    "SELECT idem_configure('stress', '{next} milliseconds')"
                ))
                .await;
            match moved {
                Ok(()) => {
                    arena.counts.moved.fetch_add(1, Ordering::Relaxed);
                    keep.reverse();
                }
                // `idem_configure` waits only briefly for running claims, and then fails. The next
                // move tries again.
                Err(error) if error.code().is_some_and(|code| code.code() == "55P03") => {}
                Err(error) => {
                    expect_kill(error)?;
                    break;
                }
            }
        }
    }
    Ok(())
}
