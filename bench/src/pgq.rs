//! Measures a relay that drains the outbox against a consumer of PgQ, which reads the same events
//! in batches. The events have the same payload. Both sides read with the same client, and end each
//! batch in a transaction.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use idem_cluster::Install;

use super::load::EFFECTS;
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
    let batch: u64 = BATCH.parse()?;
    let mut table = Table::new(
        "pgq: draining: effects per second, against PgQ",
        ["idem", "PgQ"],
    );
    for (what, in_transaction) in [
        ("each effect in its own transaction", 1),
        ("1,000 effects in a transaction", batch),
    ] {
        let mut rounds = Rounds::default();
        for round in 0..options.rounds() {
            write(&mut ours, Side::Idem, &payload, effects, in_transaction)?;
            write(
                &mut theirs,
                Side::HandWritten,
                &payload,
                effects,
                in_transaction,
            )?;
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
        table.rounds(what, &rounds, Target::AtLeast(1.0));
    }
    table.note(server::settings(&mut ours)?);
    let version: String =
        theirs.value("SELECT extversion FROM pg_extension WHERE extname = 'pgq'")?;
    table.note(format!(
        "PgQ {version}; {effects} effects in each round, written by one session in the same \
         transactions on both sides, with synchronous_commit off only for the writing; batches of \
         {BATCH} on both sides: in PgQ a tick follows each {BATCH} events; the consumer of PgQ \
         reads all columns of an event, the relay twelve columns of an effect"
    ));
    Ok(vec![table])
}

/// Writes effects or events with the same columns, `in_transaction` of them in each transaction. In
/// PgQ a tick, which ends a batch, follows each [`BATCH`] events.
fn write(
    session: &mut Session,
    side: Side,
    payload: &str,
    count: u64,
    in_transaction: u64,
) -> Result<()> {
    let call = match side {
        Side::Idem => {
            format!("idem_send('orders.reserved', '{payload}', 'customer-4711', 'StockReserved')")
        }
        Side::HandWritten => format!(
            "pgq.insert_event('{QUEUE}', 'StockReserved', '{payload}', 'customer-4711', \
                              'orders.reserved', gen_random_uuid()::text, NULL)"
        ),
    };
    // Only the writing, which is not measured, does not wait for the disk.
    session.run("SET synchronous_commit = off")?;
    let batch: u64 = BATCH.parse()?;
    let statement = format!("SELECT count({call}) FROM generate_series(1, {in_transaction})");
    for _ in 0..count / batch {
        for _ in 0..batch / in_transaction {
            session.run(&statement)?;
        }
        if side == Side::HandWritten {
            session.run(&format!("SELECT pgq.force_tick('{QUEUE}')"))?;
            session.run(&format!("SELECT pgq.ticker('{QUEUE}')"))?;
        }
    }
    session.run("RESET synchronous_commit").map(drop)
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
