//! What happens to the clients: sessions and workers are ended, backends are killed, the server
//! recovers, and the destination moves from ring to ring.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::line::{connect, expect_kill};
use super::run::Arena;

/// Between two blows, most of which are terminations.
const BETWEEN_BLOWS: Duration = Duration::from_millis(300);
const CRASH_EVERY: u64 = 15;
const RECOVERY: Duration = Duration::from_secs(60);

/// Between two moves of the destination.
const BETWEEN_MOVES: Duration = Duration::from_millis(1_000);

/// Any session of the clients, the worker's processes among them.
const VICTIM: &str = "SELECT pid FROM pg_stat_activity \
    WHERE pid <> pg_backend_pid() AND (datname = current_database() OR backend_type LIKE 'idem%') ORDER BY random() LIMIT 1";

/// Strikes until the arena closes.
pub async fn strike(arena: Arc<Arena>) -> Result<()> {
    let mut rng = SmallRng::seed_from_u64(!arena.config.seed);
    let mut blows = 0;
    while arena.is_open() {
        let client = connect(&arena.url).await?;
        loop {
            tokio::time::sleep(BETWEEN_BLOWS.mul_f64(rng.random_range(0.5..1.5))).await;
            if !arena.is_open() {
                break;
            }
            blows += 1;
            let struck = if blows % CRASH_EVERY == 0 {
                crash(&arena, &client).await
            } else {
                terminate(&arena, &client).await
            };
            if let Err(error) = struck {
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
    .context("the server recovers after a crash")?;
    arena.counts.crashed.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Moves the destination to and fro between the rings `standard` and `long`, until the arena
/// closes.
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
                // It does not wait for running claims for long; next time.
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
