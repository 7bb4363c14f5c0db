//! Measures the relay against a publisher that reads from memory and waits for the same
//! confirmations.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use deadpool_postgres::Pool;
use idem_cluster::Install;
use idem_runtime::{Relay, relay::RelayStatus};
use tokio::sync::watch;

use super::lines::{self, AnyPublisher, Broker};
use super::{pool, runtime};
use crate::options::Options;
use crate::report::{Rounds, Table, Target};
use crate::server;
use crate::side::Side;
use crate::wire::Session;

/// The number of publishes in flight, on both sides.
const IN_FLIGHT: usize = 256;
/// The number of effects in one lease. It is large because each lease has a fixed cost: a commit,
/// and the time at its end in which the relay only waits for the last confirmations.
const BATCH: u32 = 5_000;

pub fn run(install: &Install, options: &Options) -> Result<Vec<Table>> {
    let cluster = server::start(install, "bench-publish", &[])?;
    let runtime = runtime()?;
    let database = pool(&cluster, Side::Idem.database())?;
    let count = options.sized(20_000, 2_000);
    let mut table = Table::new(
        "relay: to a broker, against a publisher that reads from memory",
        ["outbox to broker, effects/s", "memory to broker, effects/s"],
    );
    table.note(format!(
        "{count} effects without a key, each confirmed by the broker; at most {IN_FLIGHT} in \
         flight; the relay leases batches of {BATCH} and acknowledges them"
    ));
    for broker in Broker::all()? {
        let mut rounds = Rounds::default();
        for round in 0..options.rounds() {
            for side in Side::in_turn(round) {
                let rate = runtime.block_on(async {
                    let line = broker.make_line().await?;
                    match side {
                        Side::Idem => {
                            from_outbox(&database, broker.publisher(), &line, count).await
                        }
                        Side::HandWritten => from_memory(&broker.publisher(), &line, count).await,
                    }
                })?;
                match side {
                    Side::Idem => rounds.ours.push(rate),
                    Side::HandWritten => rounds.theirs.push(rate),
                }
            }
        }
        table.rounds(broker.name(), &rounds, Target::AtLeast(0.7));
    }
    table.note(server::settings(&mut Session::connect(
        &cluster,
        Side::Idem.database(),
    )?)?);
    Ok(vec![table])
}

async fn from_memory(publisher: &AnyPublisher, line: &str, count: u32) -> Result<f64> {
    let messages = lines::messages(line, count);
    // The connection is opened before the clock starts, on both sides.
    lines::publish_all(publisher, &lines::messages(line, 1), 1).await?;
    let start = Instant::now();
    lines::publish_all(publisher, &messages, IN_FLIGHT).await?;
    Ok(f64::from(count) / start.elapsed().as_secs_f64())
}

async fn from_outbox(pool: &Pool, publisher: AnyPublisher, line: &str, count: u32) -> Result<f64> {
    lines::publish_all(&publisher, &lines::messages(line, 1), 1).await?;
    pool.get()
        .await?
        .execute(
            "SELECT idem_send($1, jsonb_build_object('account', n))
               FROM generate_series(1, $2::int4) n",
            &[&line, &count.cast_signed()],
        )
        .await?;
    let relay = Relay::new(pool.clone(), publisher)
        .batch(BATCH)
        .in_flight(IN_FLIGHT);
    let status = relay.status();
    let start = Instant::now();
    let summary = relay.run(has_published(status, count)).await?;
    // The measurement ends with the last acknowledgement in the database.
    let seconds = start.elapsed().as_secs_f64();
    ensure!(summary.published == u64::from(count), "{summary:?}");
    Ok(f64::from(count) / seconds)
}

/// Polls until the relay has published `count` effects. A wait for changes of the status would wake
/// this task for every effect, and use about a tenth of the processor time that the relay needs.
async fn has_published(status: watch::Receiver<RelayStatus>, count: u32) {
    while status.borrow().published < u64::from(count) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
