//! Measures `process()` against the same business transaction without protection, with the same
//! client and the same kind of pool.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Result, ensure};
use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod};
use idem_cluster::{Cluster, Install};
use idem_runtime::{Idem, Message, Processed};
use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};
use tokio::{runtime::Runtime, task::JoinSet};
use tokio_postgres::{NoTls, types::Type};
use uuid::Uuid;

use super::ground::{self, ACCOUNTS};
use super::options::Options;
use super::report::{Rounds, Table, Target};
use super::side::Side;
use super::wire::Session;

/// The number of connections. Each connection is used by a task that is never idle.
const CONNECTIONS: usize = 8;

/// The business update of both sides.
const BUSINESS: &str = "UPDATE account SET balance = balance + 1 WHERE id = $1";

pub fn run(install: &Install, options: &Options) -> Result<Vec<Table>> {
    let cluster = ground::start(install, "bench-process", &[])?;
    for side in Side::in_turn(0) {
        ground::create_accounts(&mut Session::connect(&cluster, side.database())?)?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let mut table = Table::new(
        "f. process(): claim, one business update, commit; 8 connections",
        ["idem, messages/s", "without protection, messages/s"],
    );
    table.note(
        "both sides: three round trips, unnamed statements, one pool each; every message is new",
    );
    for (commit, name) in [
        ("on", "synchronous_commit on"),
        ("off", "synchronous_commit off"),
    ] {
        let ours = pool(&cluster, &runtime, Side::Idem, commit)?;
        let theirs = pool(&cluster, &runtime, Side::HandWritten, commit)?;
        let mut rounds = Rounds::default();
        for round in 0..options.rounds() {
            for side in Side::in_turn(round) {
                let rate = match side {
                    Side::Idem => runtime.block_on(measure(&ours, options, protected))?,
                    Side::HandWritten => {
                        runtime.block_on(measure(&theirs, options, unprotected))?
                    }
                };
                match side {
                    Side::Idem => rounds.ours.push(rate),
                    Side::HandWritten => rounds.theirs.push(rate),
                }
            }
        }
        table.rounds(name, &rounds, Target::AtLeast(0.75));
    }
    table.note(ground::settings(&mut Session::connect(
        &cluster,
        Side::Idem.database(),
    )?)?);
    Ok(vec![table])
}

fn pool(
    cluster: &Cluster,
    runtime: &Runtime,
    side: Side,
    synchronous_commit: &str,
) -> Result<Pool> {
    let mut config: tokio_postgres::Config = cluster.connection_string(side.database()).parse()?;
    config.options(format!("-c synchronous_commit={synchronous_commit}"));
    let manager = Manager::from_config(
        config,
        NoTls,
        ManagerConfig {
            recycling_method: RecyclingMethod::Fast,
        },
    );
    let pool = Pool::builder(manager).max_size(CONNECTIONS).build()?;
    // All connections are opened before the clock starts.
    runtime.block_on(async {
        let mut open = Vec::new();
        for _ in 0..CONNECTIONS {
            open.push(pool.get().await?);
        }
        anyhow::Ok(())
    })?;
    Ok(pool)
}

/// Returns messages per second of all tasks together.
async fn measure<F, Fut>(pool: &Pool, options: &Options, once: F) -> Result<f64>
where
    F: Fn(Pool, i32) -> Fut + Copy + Send + 'static,
    Fut: Future<Output = Result<()>> + Send,
{
    static SEED: AtomicU64 = AtomicU64::new(0);
    let start = Instant::now();
    let end = start + options.round();
    let mut tasks = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let pool = pool.clone();
        let mut dice = SmallRng::seed_from_u64(SEED.fetch_add(1, Ordering::Relaxed));
        tasks.spawn(async move {
            let mut messages = 0_u64;
            while Instant::now() < end {
                once(pool.clone(), dice.random_range(0..ACCOUNTS.cast_signed())).await?;
                messages += 1;
            }
            anyhow::Ok(messages)
        });
    }
    let mut messages = 0;
    while let Some(done) = tasks.join_next().await {
        messages += done??;
    }
    Ok(messages as f64 / start.elapsed().as_secs_f64())
}

async fn protected(pool: Pool, account: i32) -> Result<()> {
    // All messages use one instance, as in an application.
    static IDEM: LazyLock<Idem> = LazyLock::new(Idem::default);
    let message = Message::new("bench.process", "{}").with_message_id(Uuid::new_v4().to_string());
    let processed = IDEM
        .process(&pool, &message, |tx, _| async move {
            tx.execute_typed(BUSINESS, &[(&account, Type::INT4)])
                .await?;
            Ok(Vec::new())
        })
        .await?;
    ensure!(matches!(processed, Processed::New { .. }), "{processed:?}");
    Ok(())
}

async fn unprotected(pool: Pool, account: i32) -> Result<()> {
    let mut connection = pool.get().await?;
    let tx = connection.transaction().await?;
    tx.execute_typed(BUSINESS, &[(&account, Type::INT4)])
        .await?;
    tx.commit().await?;
    Ok(())
}
