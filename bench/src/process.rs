//! Measures `process()` against the same business transaction without protection, and with the
//! insert of a hand-written inbox, with the same client and the same kind of pool.

use std::sync::LazyLock;

use anyhow::{Result, anyhow, ensure};
use deadpool_postgres::Pool;
use idem_cluster::{Cluster, Install};
use idem_runtime::{Idem, Message, Processed};
use tokio::runtime::Runtime;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::clients::{self, Clients, business_after_insert, business_after_select, business_alone};
use super::options::Options;
use super::report::{Rounds, Table, Target};
use super::server::BUSINESS;
use super::side::Side;
use super::wire::Session;
use super::{inbox, server};

/// The number of connections. Each connection is used by a task that is never idle.
const CONNECTIONS: usize = 8;

/// What one message is on the wire.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// The transaction without protection.
    Unprotected,
    /// The same with a prepared `SELECT 1` after BEGIN.
    Select,
    /// The same with the prepared insert of a hand-written inbox after BEGIN.
    Insert,
    /// `process()` with its default settings.
    Process,
    /// `process()` with prepared statements.
    Prepared,
}

impl Shape {
    const ALL: [Self; 5] = [
        Self::Unprotected,
        Self::Select,
        Self::Insert,
        Self::Process,
        Self::Prepared,
    ];

    fn side(self) -> Side {
        match self {
            Self::Unprotected | Self::Select | Self::Insert => Side::HandWritten,
            Self::Process | Self::Prepared => Side::Idem,
        }
    }
}

pub fn run(install: &Install, options: &Options) -> Result<Vec<Table>> {
    let cluster = server::start(install, "bench-process", &[])?;
    for side in Side::in_turn(0) {
        server::create_accounts(&mut Session::connect(&cluster, side.database())?)?;
    }
    inbox::create(&mut Session::connect(
        &cluster,
        Side::HandWritten.database(),
    )?)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let clients = Clients {
        count: CONNECTIONS,
        time: options.round(),
    };
    let mut table = Table::new(
        "process: process(), claim, one business update, commit; 8 connections",
        ["idem, messages/s", "baseline, messages/s"],
    );
    table.note(
        "all: three round trips, the business update is an unnamed statement, every message is \
         new; process() also forbids COMMIT and allows it again",
    );
    table.note(
        "hand-written inbox: INSERT ... ON CONFLICT DO NOTHING, prepared, sent with BEGIN, text \
         key, index on the time; both inboxes are empty at the start",
    );
    for commit in ["on", "off"] {
        let mut rates = Shape::ALL.map(|_| Vec::new());
        let pools =
            [Side::Idem, Side::HandWritten].map(|side| pool(&cluster, &runtime, side, commit));
        let [ours, theirs] = pools;
        let (ours, theirs) = (ours?, theirs?);
        for round in 0..options.rounds() {
            // Another shape is the first one in each round, and the order is reversed in turn.
            for n in 0..Shape::ALL.len() {
                let n = match round % 2 {
                    0 => (n + round) % Shape::ALL.len(),
                    _ => (2 * Shape::ALL.len() - 1 - n + round) % Shape::ALL.len(),
                };
                let shape = Shape::ALL[n];
                let pool = match shape.side() {
                    Side::Idem => &ours,
                    Side::HandWritten => &theirs,
                };
                let rate = runtime.block_on(async {
                    match shape {
                        Shape::Unprotected => clients.run(pool, business_alone).await,
                        Shape::Select => clients.run(pool, business_after_select).await,
                        Shape::Insert => clients.run(pool, business_after_insert).await,
                        Shape::Process => clients.run(pool, unprepared).await,
                        Shape::Prepared => clients.run(pool, prepared).await,
                    }
                })?;
                rates[n].push(rate.rate());
            }
        }
        let [unprotected, select, insert, process, prepared] = rates;
        for (what, ours, theirs, target) in [
            (
                "prepared, against no protection",
                &prepared,
                &unprotected,
                0.8,
            ),
            (
                "prepared, against SELECT 1 in place of the claim",
                &prepared,
                &select,
                0.95,
            ),
            (
                "prepared, against a hand-written inbox",
                &prepared,
                &insert,
                1.0,
            ),
            (
                "default, against no protection",
                &process,
                &unprotected,
                0.75,
            ),
        ] {
            let rounds = Rounds {
                ours: ours.clone(),
                theirs: theirs.clone(),
            };
            let what = format!("synchronous_commit {commit}: {what}");
            table.rounds(&what, &rounds, Target::AtLeast(target));
        }
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

async fn unprepared(pool: Pool, account: i32) -> Result<()> {
    // All messages use one instance, as in an application.
    static IDEM: LazyLock<Idem> = LazyLock::new(Idem::default);
    protected(&IDEM, &pool, account).await
}

async fn prepared(pool: Pool, account: i32) -> Result<()> {
    static IDEM: LazyLock<Result<Idem, idem_runtime::Error>> =
        LazyLock::new(|| Idem::builder().prepared_statements(true).build());
    let idem = IDEM.as_ref().map_err(|error| anyhow!("{error}"))?;
    protected(idem, &pool, account).await
}

async fn protected(idem: &Idem, pool: &Pool, account: i32) -> Result<()> {
    let message = Message::new("bench.process", "{}").with_message_id(Uuid::new_v4().to_string());
    let processed = idem
        .process(pool, &message, |tx, _| async move {
            tx.execute_typed(BUSINESS, &[(&account, Type::INT4)])
                .await?;
            Ok(Vec::new())
        })
        .await?;
    ensure!(matches!(processed, Processed::New { .. }), "{processed:?}");
    Ok(())
}
