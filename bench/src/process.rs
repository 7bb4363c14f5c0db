//! Measures `process()` against the same business transaction without protection, with the same
//! client and the same kind of pool.

use std::sync::LazyLock;

use anyhow::{Result, ensure};
use deadpool_postgres::Pool;
use idem_cluster::{Cluster, Install};
use idem_runtime::{Idem, Message, Processed};
use tokio::runtime::Runtime;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::clients::{self, Clients, business_alone};
use super::options::Options;
use super::report::{Rounds, Table, Target};
use super::server::{self, BUSINESS};
use super::side::Side;
use super::wire::Session;

/// The number of connections. Each connection is used by a task that is never idle.
const CONNECTIONS: usize = 8;

pub fn run(install: &Install, options: &Options) -> Result<Vec<Table>> {
    let cluster = server::start(install, "bench-process", &[])?;
    for side in Side::in_turn(0) {
        server::create_accounts(&mut Session::connect(&cluster, side.database())?)?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let clients = Clients {
        count: CONNECTIONS,
        time: options.round(),
    };
    let mut table = Table::new(
        "process: process(), claim, one business update, commit; 8 connections",
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
                    Side::Idem => runtime.block_on(clients.run(&ours, protected))?,
                    Side::HandWritten => runtime.block_on(clients.run(&theirs, business_alone))?,
                }
                .rate();
                match side {
                    Side::Idem => rounds.ours.push(rate),
                    Side::HandWritten => rounds.theirs.push(rate),
                }
            }
        }
        table.rounds(name, &rounds, Target::AtLeast(0.75));
    }
    table.note(server::settings(&mut Session::connect(
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
    runtime.block_on(clients::open_pool(config, CONNECTIONS, None))
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
