//! Measures batches of 1,000 claims against one set-based insert into the hand-written inbox, and
//! into a compact table, which hold the same number of identities.

use std::time::Instant;

use anyhow::{Result, ensure};
use idem_cluster::{Cluster, Install};
use uuid::Uuid;

use super::options::Options;
use super::report::{Rounds, Table, Target};
use super::side::{DESTINATION, Side};
use super::wire::{Answer, Session};
use super::{idem, inbox, server};

const BATCH: usize = 1_000;

pub fn run(install: &Install, options: &Options) -> Result<Vec<Table>> {
    let cluster = server::start(install, "bench-batch", &[])?;
    let retained = options.retained();
    let mut ours = open(&cluster, Side::Idem)?;
    idem::create(&mut ours)?;
    idem::top_up(&mut ours, idem::Fill::exactly(retained))?;
    ours.prepare("text batch", "SELECT idem_try_claim_batch($1::text[], $2)")?;
    ours.prepare(
        "uuid batch",
        "SELECT idem_try_claim_uuid_batch($1::uuid[], $2)",
    )?;
    ours.prepare("single", "SELECT idem_try_claim($1::uuid, $2)")?;

    let mut theirs = open(&cluster, Side::HandWritten)?;
    theirs.run(
        "CREATE TABLE compact (
            key         uuid        NOT NULL,
            destination int4        NOT NULL,
            claimed_at  timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (key, destination)
        )",
    )?;
    theirs.run(&format!(
        "INSERT INTO compact (key, destination)
         SELECT gen_random_uuid(), 1 FROM generate_series(1, {retained})"
    ))?;
    theirs.run("VACUUM (ANALYZE) compact")?;
    inbox::create(&mut theirs)?;
    inbox::fill(&mut theirs, retained)?;
    theirs.prepare(
        "inbox",
        "INSERT INTO inbox (message_id, destination)
         SELECT id, $2 FROM unnest($1::text[]) id ON CONFLICT DO NOTHING",
    )?;
    theirs.prepare(
        "compact",
        "INSERT INTO compact (key, destination)
         SELECT id, $2 FROM unnest($1::uuid[]) id ON CONFLICT DO NOTHING",
    )?;

    let batches = options.sized(100, 10);
    let mut inboxes = Rounds::default();
    let mut compacts = Rounds::default();
    // One entry for each value of synchronous_commit.
    let mut singles = [("off", Rounds::default()), ("on", Rounds::default())];
    for round in 0..options.rounds() {
        for side in Side::in_turn(round) {
            match side {
                Side::Idem => {
                    for (synchronous_commit, rounds) in &mut singles {
                        ours.run(&format!("SET synchronous_commit = {synchronous_commit}"))?;
                        rounds.ours.push(batch_rate(
                            &mut ours,
                            "uuid batch",
                            batches,
                            DESTINATION,
                            won_in_array,
                        )?);
                        rounds.theirs.push(single_rate(&mut ours, batches * 50)?);
                    }
                    ours.run("SET synchronous_commit = off")?;
                    inboxes.ours.push(batch_rate(
                        &mut ours,
                        "text batch",
                        batches,
                        DESTINATION,
                        won_in_array,
                    )?);
                    compacts.ours.extend(singles[0].1.ours.last());
                }
                Side::HandWritten => {
                    let rows = |answer: &Answer| answer.rows as usize;
                    for (rounds, statement, destination) in [
                        (&mut inboxes, "inbox", DESTINATION),
                        (&mut compacts, "compact", "1"),
                    ] {
                        rounds.theirs.push(batch_rate(
                            &mut theirs,
                            statement,
                            batches,
                            destination,
                            rows,
                        )?);
                    }
                }
            }
        }
    }
    let mut table = Table::new(
        "batch: batches of 1,000 claims, one client: claims per second",
        ["idem", "baseline"],
    );
    table.note(server::settings(&mut ours)?);
    table.note(format!(
        "{retained} identities on all sides at the start; in each round idem grows by {}, each \
         baseline by {}; synchronous_commit=off unless stated otherwise",
        3 * batches * BATCH + 2 * batches * 50,
        batches * BATCH
    ));
    table.note("baseline: INSERT ... SELECT unnest ... ON CONFLICT DO NOTHING");
    table.rounds(
        "text ids, against the hand-written inbox: text key, index on the time",
        &inboxes,
        Target::AtLeast(2.0),
    );
    table.rounds(
        "uuid ids, against a compact table: uuid key, no other index",
        &compacts,
        Target::AtLeast(1.6),
    );
    for (synchronous_commit, rounds) in &singles {
        let what = format!(
            "against single claims, each a transaction, synchronous_commit={synchronous_commit}"
        );
        table.rounds(&what, rounds, Target::None);
    }
    Ok(vec![table])
}

/// Returns the number of `t` in an array of booleans, which is the number of claims that were won.
fn won_in_array(answer: &Answer) -> usize {
    answer.text().map_or(0, |array| array.matches('t').count())
}

fn open(cluster: &Cluster, side: Side) -> Result<Session> {
    let mut session = Session::connect(cluster, side.database())?;
    session.run("SET synchronous_commit = off")?;
    Ok(session)
}

/// Makes claims in batches of new ids, and returns the number of claims per second. Fails unless
/// every claim is won.
fn batch_rate(
    session: &mut Session,
    statement: &str,
    batches: usize,
    destination: &str,
    won: impl Fn(&Answer) -> usize,
) -> Result<f64> {
    // Build the arrays before the clock starts, so that this work of the client is not measured.
    let arrays: Vec<String> = (0..batches)
        .map(|_| {
            let ids: Vec<String> = (0..BATCH).map(|_| Uuid::new_v4().to_string()).collect();
            format!("{{{}}}", ids.join(","))
        })
        .collect();
    let started = Instant::now();
    for array in &arrays {
        let answer = session.execute(statement, &[array, destination])?;
        let won = won(&answer);
        ensure!(won == BATCH, "{won} of {BATCH} new ids were won");
    }
    Ok((batches * BATCH) as f64 / started.elapsed().as_secs_f64())
}

fn single_rate(session: &mut Session, claims: usize) -> Result<f64> {
    let ids: Vec<String> = (0..claims).map(|_| Uuid::new_v4().to_string()).collect();
    let started = Instant::now();
    for id in &ids {
        ensure!(
            session.execute("single", &[id, DESTINATION])?.is_true(),
            "a new id was not won"
        );
    }
    Ok(claims as f64 / started.elapsed().as_secs_f64())
}
