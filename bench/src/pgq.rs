//! Measures a relay that drains the outbox against a consumer of PgQ, which reads the same events
//! in batches. The events have the same payload. Both sides read with the same client, and end each
//! batch in a transaction.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use idem_cluster::{Cluster, Install};

use super::load::{EFFECTS, Load, Until, Work};
use super::options::Options;
use super::relay::{BATCH, Drained, Relay};
use super::report::{Rounds, Table, Target};
use super::side::Side;
use super::wire::Session;
use super::{idem, server};

const QUEUE: &str = "events";
const CONSUMER: &str = "relay";

pub fn run(install: &Install, options: &Options) -> Result<Vec<Table>> {
    let cluster = server::start(install, "bench-pgq", &[])?;
    let mut ours = Session::connect(&cluster, Side::Idem.database())?;
    idem::create(&mut ours)?;
    let payload = ours
        .run(&format!("SELECT ('{EFFECTS}'::jsonb)[0]['payload']::text"))?
        .text()
        .context("no payload")?
        .to_owned();
    let mut theirs = Session::connect(&cluster, Side::HandWritten.database())?;
    create_queue(&mut theirs)?;
    let mut relay = Relay::connect(&cluster)?;
    let effects = options.sized(100_000, 10_000);
    let mut rounds = Rounds::default();
    for round in 0..options.rounds() {
        record(&cluster, effects)?;
        insert(&mut theirs, effects, &payload)?;
        for side in Side::in_turn(round) {
            let started = Instant::now();
            let drained = match side {
                Side::Idem => relay.drain(effects)?,
                Side::HandWritten => drain(&mut theirs)?,
            };
            ensure!(
                drained.effects == effects,
                "{side:?}: {} of {effects} effects were drained",
                drained.effects
            );
            let rate = effects as f64 / started.elapsed().as_secs_f64();
            match side {
                Side::Idem => rounds.ours.push(rate),
                Side::HandWritten => rounds.theirs.push(rate),
            }
        }
    }
    let mut table = Table::new(
        "pgq: draining: effects per second, against PgQ",
        ["idem", "PgQ"],
    );
    table.note(server::settings(&mut ours)?);
    let version: String =
        theirs.value("SELECT extversion FROM pg_extension WHERE extname = 'pgq'")?;
    table.note(format!(
        "PgQ {version}; {effects} effects in each round, batches of {BATCH} on both sides; idem: \
         each effect in its own transaction; PgQ: {BATCH} events in a transaction, with a tick \
         after it; the consumer of PgQ reads all columns of an event, the relay twelve columns of \
         an effect"
    ));
    table.rounds("one relay, one consumer", &rounds, Target::AtLeast(1.0));
    Ok(vec![table])
}

fn create_queue(session: &mut Session) -> Result<()> {
    session
        .run("CREATE EXTENSION pgq")
        .context("install Debian's package postgresql-15-pgq3 and run `cargo xtask build`")?;
    session.run(&format!(
        "SELECT pgq.create_queue('{QUEUE}'), pgq.register_consumer('{QUEUE}', '{CONSUMER}')"
    ))?;
    session.prepare(
        "next",
        &format!("SELECT pgq.next_batch('{QUEUE}', '{CONSUMER}')"),
    )?;
    session.prepare("read", "SELECT * FROM pgq.get_batch_events($1::bigint)")?;
    session.prepare("finish", "SELECT pgq.finish_batch($1::bigint)")
}

/// Records effects, each in its own transaction.
fn record(cluster: &Cluster, effects: u64) -> Result<()> {
    let load = Load {
        cluster,
        side: Side::Idem,
        work: Work::Effect,
        clients: 8,
        duplicates: 0,
        synchronous_commit: false,
        known: &[],
        until: Until::Count(effects),
        pace: None,
        record: None,
    };
    load.run().map(drop)
}

/// Inserts events with the same columns. A tick, which ends a batch, follows each transaction.
fn insert(session: &mut Session, effects: u64, payload: &str) -> Result<()> {
    let batch: u64 = BATCH.parse()?;
    for _ in 0..effects / batch {
        session.run(&format!(
            "SELECT count(pgq.insert_event('{QUEUE}', 'StockReserved', '{payload}',
                        'customer-4711', 'orders.reserved', gen_random_uuid()::text, NULL))
               FROM generate_series(1, {batch})"
        ))?;
        session.run(&format!("SELECT pgq.force_tick('{QUEUE}')"))?;
        session.run(&format!("SELECT pgq.ticker('{QUEUE}')"))?;
    }
    Ok(())
}

/// Reads all batches and finishes each of them.
fn drain(session: &mut Session) -> Result<Drained> {
    let mut drained = Drained::default();
    loop {
        let next = session.execute("next", &[])?;
        let Some(batch) = next.text() else {
            return Ok(drained);
        };
        let batch = batch.to_owned();
        let read = session.execute_each("read", &[&batch], |event| {
            drained.seq_sum += Relay::seq(event)?;
            Ok(())
        })?;
        drained.effects += read.rows;
        session.execute("finish", &[&batch])?;
    }
}
