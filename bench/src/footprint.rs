//! Measures WAL per claim and bytes per retained claim, including the cost of removing expired
//! claims, over ten retention periods.
//!
//! A period is a number of claims and not a time. Both sides therefore do the same work between two
//! checkpoints, and the figures do not depend on the current speed of the machine.

use crate::idem::SEALED;
use anyhow::{Context, Result, ensure};
use idem_cluster::{Cluster, Install};

use super::load::{Load, Until, Work};
use super::options::Options;
use super::report::{Table, Target};
use super::side::Side;
use super::throughput::keep_retention;
use super::wire::Session;
use super::{idem, inbox, server};

const PERIODS: usize = 10;
/// The periods before the measurement. After them both sides are in a steady state: every slice,
/// and every page of the table, has been used.
const WARM_UP: usize = 2;
/// The number of steps in one period. In each step, both sides may remove expired claims, and the
/// benchmark reads the size of the tables.
const STEPS: u64 = 12;
/// The number of steps between two rotations.
const STEPS_OF_A_SLICE: u64 = STEPS / SEALED as u64;
/// The number of clients. The machine has at least as many cores. With many more clients,
/// PostgreSQL would extend a small table by many pages at a time, which the table would never fill.
const CLIENTS: usize = 2;
/// The fixed part of autovacuum's default threshold, in dead rows. The other part is a fifth of the
/// table.
const DEAD_ROWS: u64 = 50;

/// The figures of one period, in bytes.
#[derive(Clone, Copy)]
struct Period {
    wal_per_claim: f64,
    bytes_per_claim: f64,
    peak_per_claim: f64,
}

pub fn run(install: &Install, options: &Options) -> Result<Vec<Table>> {
    let cluster = server::start(install, "bench-storage", &[])?;
    let claims = STEPS * options.sized(20_000, 2_000);
    let ours = periods(&cluster, Side::Idem, claims)?;
    let theirs = periods(&cluster, Side::HandWritten, claims)?;

    let mut sizes = Table::new(
        "storage: WAL and disk: bytes per claim, retention included",
        ["idem", "hand-written"],
    );
    sizes.note(server::settings(&mut Session::connect(
        &cluster,
        Side::Idem.database(),
    )?)?);
    sizes.note(format!(
        "{claims} claims in a retention period, {PERIODS} periods after {WARM_UP} warm-up periods, \
         {CLIENTS} clients, each claim a transaction; a checkpoint after every period"
    ));
    sizes.note(
        "hand-written: expired rows are deleted during the load; VACUUM runs when autovacuum \
         would run it, at 50 + 20 % dead rows",
    );
    let mean = |periods: &[Period], of: fn(&Period) -> f64| {
        periods.iter().map(of).sum::<f64>() / periods.len() as f64
    };
    let peak = |periods: &[Period]| periods.iter().map(|p| p.peak_per_claim).fold(0.0, f64::max);
    let wal: fn(&Period) -> f64 = |p| p.wal_per_claim;
    let bytes: fn(&Period) -> f64 = |p| p.bytes_per_claim;
    sizes.pair(
        "WAL per claim",
        mean(&ours, wal),
        mean(&theirs, wal),
        Target::AtMost(0.38),
    );
    sizes.pair(
        "on disk per retained claim, mean",
        mean(&ours, bytes),
        mean(&theirs, bytes),
        Target::AtMost(0.41),
    );
    sizes.pair(
        "on disk per retained claim, peak",
        peak(&ours),
        peak(&theirs),
        Target::None,
    );

    let mut flat = Table::new(
        "    The last of the ten periods against the first",
        ["last", "first"],
    );
    for (name, periods, target) in [
        ("idem", &ours, Target::Within(0.05)),
        ("hand-written", &theirs, Target::None),
    ] {
        let (first, last) = (
            periods.first().context("no period")?,
            periods.last().context("no period")?,
        );
        flat.pair(
            &format!("{name}: WAL per claim"),
            last.wal_per_claim,
            first.wal_per_claim,
            target,
        );
        flat.pair(
            &format!("{name}: on disk per retained claim"),
            last.bytes_per_claim,
            first.bytes_per_claim,
            target,
        );
    }
    Ok(vec![sizes, flat])
}

fn periods(cluster: &Cluster, side: Side, claims: u64) -> Result<Vec<Period>> {
    let mut session = Session::connect(cluster, side.database())?;
    match side {
        Side::Idem => idem::create(&mut session)?,
        Side::HandWritten => {
            inbox::create(&mut session)?;
            // VACUUM runs explicitly: autovacuum's naptime is longer than a period at full speed.
            session.run("ALTER TABLE inbox SET (autovacuum_enabled = off)")?;
        }
    }
    session.run("CHECKPOINT")?;
    let mut periods = Vec::new();
    let mut dead = 0;
    for number in 0..WARM_UP + PERIODS {
        let wal_before = server::wal_position(&mut session)?;
        let mut bytes = Vec::new();
        for step in 0..STEPS {
            let load = Load {
                cluster,
                side,
                work: Work::ClaimAlone,
                clients: CLIENTS,
                duplicates: 0,
                synchronous_commit: false,
                known: &[],
                until: Until::Count(claims / STEPS),
                record: None,
            };
            let (done, _) = load.run_with(|progress| match side {
                Side::Idem if step.is_multiple_of(STEPS_OF_A_SLICE) => idem::rotate(&mut session),
                Side::Idem => Ok(()),
                // In the first period no row is old enough to be deleted.
                Side::HandWritten if number == 0 => Ok(()),
                Side::HandWritten => keep_retention(&mut session, progress),
            })?;
            ensure!(
                done.won == claims / STEPS,
                "{} of {} claims were won",
                done.won,
                claims / STEPS
            );
            if side == Side::HandWritten && number > 0 {
                dead += done.won;
                if dead >= DEAD_ROWS + claims / 5 {
                    session.run("VACUUM inbox")?;
                    dead = 0;
                }
            }
            bytes.push(match side {
                Side::Idem => idem::bytes(&mut session)?,
                Side::HandWritten => inbox::bytes(&mut session)?,
            });
        }
        session.run("CHECKPOINT")?;
        let period = Period {
            wal_per_claim: (server::wal_position(&mut session)? - wal_before) as f64
                / claims as f64,
            bytes_per_claim: bytes.iter().sum::<u64>() as f64 / bytes.len() as f64 / claims as f64,
            peak_per_claim: bytes.iter().copied().max().unwrap_or(0) as f64 / claims as f64,
        };
        eprintln!(
            "{side:?}, period {number}: {:.0} bytes of WAL per claim, {:.0} bytes on disk per \
             retained claim",
            period.wal_per_claim, period.bytes_per_claim
        );
        if number >= WARM_UP {
            periods.push(period);
        }
    }
    match side {
        Side::Idem => ensure!(
            idem::stored(&mut session)? >= claims,
            "idem removed claims before the end of their retention"
        ),
        Side::HandWritten => ensure!(
            inbox::retained(&mut session)? == claims,
            "the number of rows in the hand-written inbox has changed"
        ),
    }
    Ok(periods)
}
