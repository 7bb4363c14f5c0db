//! Measures the cost of recording an effect, and the speed of a relay that drains the outbox.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use idem_cluster::{Cluster, Install};

use super::load::{EFFECTS, Load, Until, Work};
use super::options::Options;
use super::pgbench::{self, Script};
use super::relay::{Drained, Relay};
use super::report::{Rounds, Table, Target};
use super::side::{DESTINATION, Side};
use super::wire::Session;
use super::{idem, server};

pub fn run(install: &Install, options: &Options) -> Result<Vec<Table>> {
    let cluster = server::start(install, "bench-effects", &[])?;
    let mut session = Session::connect(&cluster, Side::Idem.database())?;
    idem::create(&mut session)?;
    let settings = server::settings(&mut session)?;
    let mut recording = recording(&cluster, &mut session, options)?;
    recording.note(settings);
    Ok(vec![recording, draining(&cluster, &mut session, options)?])
}

/// Compares the recording of an effect with an INSERT into a hand-written table that has the
/// columns and the indexes of a slice.
fn recording(cluster: &Cluster, session: &mut Session, options: &Options) -> Result<Table> {
    session.run("CREATE TABLE bare_outbox (LIKE idem.outbox_0 INCLUDING ALL)")?;
    session.run("CREATE SEQUENCE bare_outbox_seq")?;
    let payload = session
        .run(&format!("SELECT ('{EFFECTS}'::jsonb)[0]['payload']::text"))?
        .text()
        .context("no payload")?
        .to_owned();
    let record = format!("SELECT idem_record_effects(:id::text, '{DESTINATION}', '{EFFECTS}');");
    let insert = format!(
        "INSERT INTO bare_outbox (seq, tx, recorded_at, partition_hash, ordinal, \
                source_destination, replay, source_key, message_id, topic, key, type, payload, \
                content_type) \
         VALUES (nextval('bare_outbox_seq'), pg_current_xact_id(), now(), 4711, 0, 1, false, \
                 :id::uuid, gen_random_uuid(), 'orders.reserved', 'customer-4711', \
                 'StockReserved', convert_to('{payload}', 'UTF8'), 'application/json');"
    );
    let mut latency = Rounds::default();
    let mut rate = Rounds::default();
    let rows = "SELECT (SELECT count(*) FROM idem.outbox_row) + (SELECT count(*) FROM bare_outbox)";
    for round in 0..options.rounds() {
        for side in Side::in_turn(round) {
            let before: u64 = session.value(rows)?;
            let (statement, into) = match side {
                Side::Idem => (&record, (&mut latency.ours, &mut rate.ours)),
                Side::HandWritten => (&insert, (&mut latency.theirs, &mut rate.theirs)),
            };
            let output = run_script(cluster, statement, options.round())?;
            let transactions = output.transactions()?;
            let added = session.value::<u64>(rows)? - before;
            ensure!(
                added == transactions,
                "{transactions} transactions, {added} effects"
            );
            into.0.push(output.latency_us(statement)?);
            into.1.push(transactions as f64);
        }
    }
    let mut table = Table::new(
        "effects: recording one effect, against a bare INSERT of the same row into the same table \
         and indexes",
        ["idem", "bare INSERT"],
    );
    table.note(
        "pgbench, prepared statements, one client; BEGIN, claim, (this), COMMIT; \
         synchronous_commit=off",
    );
    table.rounds(
        "latency of the statement, us",
        &latency,
        Target::AtMost(1.3),
    );
    table.rounds("whole transactions in a round", &rate, Target::None);
    Ok(table)
}

/// Runs a script that claims a new id and runs `statement` in the same transaction.
fn run_script(cluster: &Cluster, statement: &str, time: Duration) -> Result<pgbench::Output> {
    let text = format!(
        "SELECT gen_random_uuid()::text AS id \\gset\n\
         BEGIN;\n\
         SELECT idem_try_claim(:id::text, '{DESTINATION}');\n\
         {statement}\n\
         COMMIT;\n"
    );
    Script {
        cluster,
        database: Side::Idem.database(),
        text: &text,
        clients: 1,
        time,
        synchronous_commit: false,
    }
    .run()
}

/// Compares a relay with a worker that marks the published rows of a hand-written outbox.
fn draining(cluster: &Cluster, session: &mut Session, options: &Options) -> Result<Table> {
    let effects = options.sized(100_000, 10_000);
    let mut relay = Relay::connect(cluster)?;
    // Drain the effects that were recorded before.
    while relay.step()?.effects > 0 {}
    let mut worker = Session::connect(cluster, Side::Idem.database())?;
    let mut rounds = Rounds::default();
    for round in 0..options.rounds() {
        let last: u64 = session.value("SELECT idem.last_outbox_seq()")?;
        let load = Load {
            cluster,
            side: Side::Idem,
            work: Work::Effect,
            clients: 8,
            duplicates: 0,
            synchronous_commit: false,
            known: &[],
            until: Until::Count(effects),
            record: None,
        };
        load.run()?;
        make_marked(session, &mut worker, last)?;
        let mut drained = Vec::new();
        for side in Side::in_turn(round) {
            let started = Instant::now();
            match side {
                Side::Idem => {
                    drained.push(relay.drain(effects)?);
                    rounds
                        .ours
                        .push(effects as f64 / started.elapsed().as_secs_f64());
                }
                Side::HandWritten => {
                    drained.push(mark_all(&mut worker)?);
                    rounds
                        .theirs
                        .push(effects as f64 / started.elapsed().as_secs_f64());
                }
            }
        }
        ensure!(
            drained[0] == drained[1],
            "the relay and the worker have drained different effects: {drained:?}"
        );
    }
    let mut table = Table::new(
        "    Draining: effects per second, against UPDATE ... SKIP LOCKED that marks 100 rows at a \
         time",
        ["idem", "marking"],
    );
    table.note(format!(
        "{effects} effects, each recorded in its own transaction; idem reads and acknowledges \
         1,000 at a time; synchronous_commit=on"
    ));
    table.note(
        "marking: the same rows with published_at, primary key on seq, partial index on \
         unpublished rows; one statement for each batch, RETURNING all columns",
    );
    table.rounds("one relay, one worker", &rounds, Target::AtLeast(20.0));
    Ok(table)
}

/// Creates a hand-written outbox with the same rows as the outbox of idem after `after`.
fn make_marked(session: &mut Session, worker: &mut Session, after: u64) -> Result<()> {
    session.run("DROP TABLE IF EXISTS marked_outbox")?;
    session.run(&format!(
        "CREATE TABLE marked_outbox AS
         SELECT *, NULL::timestamptz AS published_at
           FROM idem.outbox_row WHERE seq > {after} ORDER BY seq"
    ))?;
    session.run("ALTER TABLE marked_outbox ADD PRIMARY KEY (seq)")?;
    session.run(
        "CREATE INDEX marked_outbox_waiting ON marked_outbox (seq) WHERE published_at IS NULL",
    )?;
    session.run("VACUUM (ANALYZE) marked_outbox")?;
    worker.run("DEALLOCATE ALL")?;
    worker.prepare(
        "mark",
        "UPDATE marked_outbox SET published_at = now()
          WHERE seq IN (SELECT seq FROM marked_outbox WHERE published_at IS NULL
                         ORDER BY seq LIMIT 100 FOR UPDATE SKIP LOCKED)
         RETURNING seq, message_id, topic, key, type, payload, content_type, headers, traceparent,
                   recorded_at, source_destination",
    )
}

fn mark_all(worker: &mut Session) -> Result<Drained> {
    let mut all = Drained::default();
    loop {
        let marked = worker.execute_each("mark", &[], |row| {
            all.seq_sum += Relay::seq(row)?;
            Ok(())
        })?;
        if marked.rows == 0 {
            return Ok(all);
        }
        all.effects += marked.rows;
    }
}
