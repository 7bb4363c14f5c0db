//! Measures the same load with and without a transaction in another session that has been open for
//! a long time.
//!
//! Two clusters differ only in this transaction. First both clusters run the same load while the
//! transaction is held. Then they are measured alternately while the transaction is still held.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use idem_cluster::{Cluster, Install};

use super::load::{Load, Until, Work};
use super::options::Options;
use super::relay::Relay;
use super::report::{Rounds, Table, Target};
use super::side::Side;
use super::wire::Session;
use super::{idem, server};

/// The number of clients of the load while the transaction is held, and the pause of a client
/// between two transactions.
const BACKGROUND: (usize, Duration) = (4, Duration::from_millis(8));

pub fn run(install: &Install, options: &Options) -> Result<Vec<Table>> {
    let hold = options.sized(Duration::from_secs(600), Duration::from_secs(15));
    let retention = options.sized("60 seconds", "10 seconds");
    let held = prepare(install, "bench-snapshot-held", retention)?;
    let free = prepare(install, "bench-snapshot-free", retention)?;

    let mut holder = Session::connect(&held, Side::Idem.database())?;
    // The transaction reads and writes, so that it has both the oldest snapshot and the oldest
    // transaction id.
    holder.run("BEGIN ISOLATION LEVEL REPEATABLE READ")?;
    holder.run("UPDATE account SET balance = balance + 1 WHERE id = 0")?;
    let held_since = Instant::now();

    eprintln!("holding a transaction for {hold:?} under load");
    let carried = thread::scope(|scope| {
        [&held, &free]
            .map(|cluster| scope.spawn(move || carry_load(cluster, hold)))
            .map(|side| side.join().map_err(|_| anyhow!("a load panicked"))?)
            .into_iter()
            .collect::<Result<Vec<u64>>>()
    })?;

    let mut relays = [Relay::connect(&held)?, Relay::connect(&free)?];
    let [mut claims, mut duplicates, mut drained] = [const {
        Rounds {
            ours: Vec::new(),
            theirs: Vec::new(),
        }
    }; 3];
    for round in 0..options.rounds() {
        for side in Side::in_turn(round) {
            let is_held = side == Side::Idem;
            let (cluster, relay) = if is_held {
                (&held, &mut relays[0])
            } else {
                (&free, &mut relays[1])
            };
            let rates = measure(cluster, relay, options)?;
            for (rounds, rate) in [&mut claims, &mut duplicates, &mut drained]
                .into_iter()
                .zip(rates)
            {
                if is_held {
                    rounds.ours.push(rate)
                } else {
                    rounds.theirs.push(rate)
                }
            }
        }
    }
    let held_for = held_since.elapsed();
    // This query fails unless the transaction was open all the time.
    holder.run("SELECT count(*) FROM account")?;
    holder.run("ROLLBACK")?;

    let mut table = Table::new(
        "open-snapshot: with and without a transaction held open in another session: per second",
        ["with", "without"],
    );
    let rotations = |cluster| -> Result<u64> {
        Ok(idem::Ring::steady(&mut Session::connect(cluster, Side::Idem.database())?)?.rotations())
    };
    table.note(server::settings(&mut Session::connect(
        &held,
        Side::Idem.database(),
    )?)?);
    table.note(format!(
        "held for {:.0} s before the first round and {:.0} s in all{}; \
         {} and {} effects recorded and drained during this time",
        hold.as_secs_f64(),
        held_for.as_secs_f64(),
        if options.quick {
            " (the full run holds 600 s)"
        } else {
            ""
        },
        carried[0],
        carried[1],
    ));
    if let (Ok(with), Ok(without)) = (rotations(&held), rotations(&free)) {
        table.note(format!(
            "retention {retention}; the ring rotated {with} and {without} times"
        ));
    }
    table.note(
        "REPEATABLE READ transaction that has read and written; 8 clients, synchronous_commit=off",
    );
    table.rounds(
        "claims, each with one effect",
        &claims,
        Target::AtLeast(0.95),
    );
    table.rounds("duplicates", &duplicates, Target::AtLeast(0.95));
    table.rounds("effects drained", &drained, Target::AtLeast(0.95));
    Ok(vec![table])
}

fn prepare(install: &Install, name: &str, retention: &str) -> Result<Cluster> {
    let cluster = server::start(install, name, &[("idem.naptime", "1s")])?;
    let mut session = Session::connect(&cluster, Side::Idem.database())?;
    server::create_accounts(&mut session)?;
    idem::create(&mut session)?;
    // All rings are set, because the outbox keeps its effects as long as the longest retention.
    for ring in ["short", "standard", "long"] {
        session.run(&format!(
            "SELECT idem_set_retention('{ring}', '{retention}')"
        ))?;
    }
    Ok(cluster)
}

fn load<'a>(cluster: &'a Cluster, known: &'a [String], until: Until) -> Load<'a> {
    Load {
        cluster,
        side: Side::Idem,
        work: Work::Effect,
        clients: 8,
        duplicates: if known.is_empty() { 0 } else { 100 },
        synchronous_commit: false,
        known,
        until,
        pace: None,
        record: None,
    }
}

/// Runs claims, duplicates and a relay, at a pace that does not use the machine fully. Returns the
/// number of effects that the relay drained.
fn carry_load(cluster: &Cluster, hold: Duration) -> Result<u64> {
    let (clients, pause) = BACKGROUND;
    let mut relay = Relay::connect(cluster)?;
    let mut drained = 0;
    let background = Load {
        clients,
        duplicates: 30,
        pace: Some(pause),
        ..load(cluster, &[], Until::Time(hold))
    };
    let (done, _) = background.run_with(|progress| {
        drained = relay.accompany(progress)?;
        Ok(())
    })?;
    ensure!(
        drained == done.won,
        "{} effects recorded, {drained} drained",
        done.won
    );
    Ok(drained)
}

/// Returns the rates of claims, of duplicates, and of the relay that drains the effects of the
/// claims.
fn measure(cluster: &Cluster, relay: &mut Relay, options: &Options) -> Result<[f64; 3]> {
    let part = Until::Time(options.round() / 2);
    let (claimed, ids) = load(cluster, &[], part).run_with(|_| Ok(()))?;
    ensure!(claimed.won == claimed.transactions, "a new id was not won");
    let started = Instant::now();
    relay.drain(claimed.won)?;
    let drained = claimed.won as f64 / started.elapsed().as_secs_f64();
    let repeated = load(cluster, &ids, part).run()?;
    ensure!(repeated.won == 0, "a duplicate was won");
    Ok([claimed.rate(), repeated.rate(), drained])
}
