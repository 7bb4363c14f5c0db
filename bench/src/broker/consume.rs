//! Measures the consumer runtime against the same consumer without idem: same source, same business
//! update, same batches, same connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use deadpool_postgres::Pool;
use futures_util::future::try_join_all;
use idem_cluster::Install;
use idem_runtime::{Consumer, Delivery, Message, Settlement, Source as _, Tx, consumer::Batches};
use tokio::sync::{Mutex, Notify};
use tokio::task::JoinSet;

use super::lines::{self, AnySource, Broker};
use super::{CONNECTIONS, pool, runtime};
use crate::options::Options;
use crate::report::{Rounds, Table, Target};
use crate::server::{self, ACCOUNTS, BUSINESS};
use crate::side::Side;
use crate::wire::Session;

/// The number of messages that share a transaction.
const BATCH: usize = 100;
/// The longest time that the first message of a batch waits for further messages.
const LINGER: Duration = Duration::from_millis(10);
/// The number of publishes in flight while a queue or stream is filled.
const FILLERS: usize = 500;

pub fn run(install: &Install, options: &Options) -> Result<Vec<Table>> {
    let cluster = server::start(install, "bench-consume", &[])?;
    for side in Side::in_turn(0) {
        server::create_accounts(&mut Session::connect(&cluster, side.database())?)?;
    }
    let runtime = runtime()?;
    let ours = pool(&cluster, Side::Idem.database())?;
    let theirs = pool(&cluster, Side::HandWritten.database())?;
    let count = options.sized(20_000, 2_000);
    let mut table = Table::new(
        "consumer: the runtime, batches of 100, against the same consumer without idem",
        ["idem, messages/s", "without idem, messages/s"],
    );
    table.note(format!(
        "{count} new messages in a durable queue or stream; one business update for each; \
         8 concurrent transactions; every message is acknowledged after the commit; the update \
         is prepared on both sides"
    ));
    for (broker, least) in Broker::all()?.iter().zip([0.88, 0.85]) {
        let mut rounds = Rounds::default();
        for round in 0..options.rounds() {
            for side in Side::in_turn(round) {
                let rate = runtime.block_on(async {
                    let line = broker.make_line().await?;
                    lines::publish_all(
                        &broker.publisher(),
                        &lines::messages(&line, count),
                        FILLERS,
                    )
                    .await?;
                    let source = broker.source(&line);
                    match side {
                        Side::Idem => protected(&ours, source, &line, count).await,
                        Side::HandWritten => unprotected(&theirs, source, count).await,
                    }
                })?;
                match side {
                    Side::Idem => rounds.ours.push(rate),
                    Side::HandWritten => rounds.theirs.push(rate),
                }
            }
        }
        table.rounds(broker.name(), &rounds, Target::AtLeast(least));
    }
    table.note(server::settings(&mut Session::connect(
        &cluster,
        Side::Idem.database(),
    )?)?);
    Ok(vec![table])
}

fn account_of(message: &Message) -> Result<i32, idem_runtime::Error> {
    #[derive(serde::Deserialize)]
    struct Body {
        account: u32,
    }
    let body: Body = message.json()?;
    Ok((body.account % ACCOUNTS).cast_signed())
}

/// Returns messages per second, from the first fetch to the last acknowledgement.
async fn protected(pool: &Pool, source: AnySource, line: &str, count: u32) -> Result<f64> {
    let (handled, done) = (Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
    let shutdown = {
        let done = Arc::clone(&done);
        async move { done.notified().await }
    };
    let start = Instant::now();
    let summary = Consumer::new(pool.clone(), source)
        .handle(line, move |tx: Tx, message: Message| {
            let (handled, done) = (Arc::clone(&handled), Arc::clone(&done));
            async move {
                let update = tx.prepare_cached(BUSINESS).await?;
                tx.execute(&update, &[&account_of(&message)?]).await?;
                if handled.fetch_add(1, Ordering::Relaxed) + 1 == count {
                    done.notify_one();
                }
                Ok(Vec::new())
            }
        })
        .concurrency(CONNECTIONS)
        .batches(Batches::new(BATCH).linger(LINGER))
        .run(shutdown)
        .await?;
    let seconds = start.elapsed().as_secs_f64();
    ensure!(summary.handled == u64::from(count), "{summary:?}");
    Ok(f64::from(count) / seconds)
}

/// The alternative without idem: the same batches. Each batch is one transaction, and its messages
/// are acknowledged after the commit.
async fn unprotected(pool: &Pool, source: AnySource, count: u32) -> Result<f64> {
    let source = Arc::new(Mutex::new((source, count)));
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (pool, source) = (pool.clone(), Arc::clone(&source));
        tasks.spawn(async move {
            loop {
                let batch = collect(&mut *source.lock().await).await?;
                if batch.is_empty() {
                    return anyhow::Ok(());
                }
                let mut connection = pool.get().await?;
                let tx = connection.transaction().await?;
                let messages: Vec<Message> = batch
                    .iter()
                    .map(|delivery| delivery.message().clone())
                    .collect();
                let update = tx.prepare_cached(BUSINESS).await?;
                for message in &messages {
                    tx.execute(&update, &[&account_of(message)?]).await?;
                }
                tx.commit().await?;
                let settled = batch
                    .into_iter()
                    .map(|delivery| delivery.settle(Settlement::Acknowledge));
                try_join_all(settled)
                    .await
                    .map_err(|error| anyhow!(error))?;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(f64::from(count) / start.elapsed().as_secs_f64())
}

/// Returns the next deliveries, at most one batch. Returns an empty list when all messages have
/// been delivered.
async fn collect((source, left): &mut (AnySource, u32)) -> Result<Vec<Delivery>> {
    let mut batch = Vec::new();
    let mut until = None;
    while *left > 0 && batch.len() < BATCH {
        let next = source.next();
        let delivery = match until {
            None => next.await,
            Some(until) => match tokio::time::timeout_at(until, next).await {
                Ok(delivery) => delivery,
                Err(_) => break,
            },
        };
        let delivery = delivery
            .map_err(|error| anyhow!(error))?
            .ok_or_else(|| anyhow!("the source has ended"))?;
        batch.push(delivery);
        *left -= 1;
        until.get_or_insert_with(|| tokio::time::Instant::now() + LINGER);
    }
    Ok(batch)
}
