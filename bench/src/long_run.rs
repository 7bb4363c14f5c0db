//! Measures claims with their business update for many minutes, while many identities are retained
//! on both sides: idem rotates its slices, and the hand-written inbox deletes as many rows as it
//! adds and is vacuumed by autovacuum. Checkpoints happen as the settings define.

use std::time::Duration;

use anyhow::{Result, ensure};
use idem_cluster::{Cluster, Install};

use super::load::{Load, Progress, Until, Work};
use super::options::Options;
use super::record::Record;
use super::report::{Curve, Figures, Table, Target, median};
use super::side::Side;
use super::wire::Session;
use super::{idem, inbox, server, throughput};

const CLIENTS: usize = 16;
/// The number of rotations of the ring during a run.
const ROTATIONS: usize = 2;

/// The sizes of a run.
#[derive(Clone, Copy)]
struct Sizes {
    retained: u64,
    minutes: usize,
    minute: Duration,
}

/// The figures of each minute of one side.
#[derive(Default)]
struct Minutes {
    rate: Vec<f64>,
    p99_ms: Vec<f64>,
    wal_per_claim: Vec<f64>,
}

pub fn run(install: &Install, options: &Options) -> Result<Figures> {
    let sizes = Sizes {
        retained: options.sized(50_000_000, 200_000),
        minutes: options.sized(15, 3),
        minute: Duration::from_secs(options.sized(60, 2)),
    };
    let mut table = Table::new(
        "long-run: BEGIN, claim, business update, COMMIT: medians of the minutes",
        ["idem", "hand-written"],
    );
    let ours = side(install, Side::Idem, sizes, &mut table)?;
    let theirs = side(install, Side::HandWritten, sizes, &mut table)?;
    table.note(format!(
        "{CLIENTS} clients, synchronous_commit=on, every message is new, {} minutes of {} s for \
         each side, one side after the other, each alone; idem: {ROTATIONS} rotations; \
         hand-written: every second as many rows are deleted as were claimed, oldest first, 1,000 \
         in each statement; autovacuum on",
        sizes.minutes,
        sizes.minute.as_secs(),
    ));
    let lines = [
        (
            "transactions per second",
            &ours.rate,
            &theirs.rate,
            Target::AtLeast(1.4),
        ),
        ("p99, ms", &ours.p99_ms, &theirs.p99_ms, Target::AtMost(0.6)),
        (
            "WAL per claim, bytes",
            &ours.wal_per_claim,
            &theirs.wal_per_claim,
            Target::AtMost(0.07),
        ),
    ];
    let mut curves = Vec::new();
    for (what, ours, theirs, target) in lines {
        table.pair(what, median(ours), median(theirs), target);
        curves.push(Curve {
            name: what.to_owned(),
            axis: "minute".to_owned(),
            at: (1..=ours.len()).map(|minute| minute as f64).collect(),
            ours: ours.clone(),
            theirs: theirs.clone(),
        });
    }
    Ok(Figures {
        tables: vec![table],
        curves,
    })
}

/// Starts a server for one side, fills its tables and runs the load. Each side runs alone, so that
/// no maintenance of the other one is measured. Fails if a claim returns a wrong result, or if
/// fewer identities are left than must be retained.
fn side(install: &Install, side: Side, sizes: Sizes, table: &mut Table) -> Result<Minutes> {
    // Filters take two bytes for each retained claim.
    let settings = [("idem.filter_memory", "256MB")];
    let cluster = server::start(install, "bench-long-run", &settings)?;
    let cluster = &cluster;
    let retained = match side {
        // The rotations of the run remove the oldest slices, and the number of claims must stay
        // above that of the other side.
        Side::Idem => sizes.retained * 4 / 3,
        Side::HandWritten => sizes.retained,
    };
    throughput::prepare(cluster, side, retained)?;
    let mut session = Session::connect(cluster, side.database())?;
    if side == Side::Idem {
        idem::vacuum(&mut session)?;
        table.note(server::settings(&mut session)?);
    }
    let before = stored(&mut session, side)?;
    session.run("CHECKPOINT")?;
    let record = Record::new(sizes.minute);
    let load = Load {
        cluster,
        side,
        work: Work::Business,
        clients: CLIENTS,
        duplicates: 0,
        synchronous_commit: true,
        known: &[],
        until: Until::Time(sizes.minute * sizes.minutes as u32),
        record: Some(&record),
    };
    let mut wal = Vec::new();
    load.run_with(|progress| {
        std::thread::scope(|scope| {
            let retention = scope.spawn(|| match side {
                Side::Idem => rotate(&mut session, progress, sizes),
                Side::HandWritten => throughput::keep_retention(&mut session, progress),
            });
            wal = wal_by_minute(cluster, side, progress, sizes)?;
            retention
                .join()
                .unwrap_or_else(|_| Err(anyhow::anyhow!("the retention panicked")))
        })
    })?;
    let after = stored(&mut session, side)?;
    ensure!(
        after >= sizes.retained,
        "{side:?}: {after} identities are left of {}",
        sizes.retained
    );
    table.note(format!(
        "{side:?}: {before} identities at the start, {after} at the end"
    ));
    let mut minutes = Minutes::default();
    for (minute, wal) in record.minutes(sizes.minutes)?.into_iter().zip(wal) {
        let claims = minute.transactions as f64;
        minutes.rate.push(claims / sizes.minute.as_secs_f64());
        minutes.p99_ms.push(minute.p99_ms);
        minutes.wal_per_claim.push(wal / claims);
    }
    ensure!(minutes.rate.len() == sizes.minutes, "a minute is missing");
    Ok(minutes)
}

/// Returns the number of identities that a side retains.
fn stored(session: &mut Session, side: Side) -> Result<u64> {
    match side {
        Side::Idem => idem::stored(session),
        Side::HandWritten => inbox::retained(session),
    }
}

/// Rotates the ring at equal distances.
fn rotate(session: &mut Session, progress: &Progress, sizes: Sizes) -> Result<()> {
    let distance = sizes.minute * sizes.minutes as u32 / (ROTATIONS as u32 + 1);
    for number in 1..=ROTATIONS as u32 {
        progress.wait_until(distance * number);
        idem::rotate(session)?;
    }
    Ok(())
}

/// Returns the bytes of WAL that the server has written in each minute.
fn wal_by_minute(
    cluster: &Cluster,
    side: Side,
    progress: &Progress,
    sizes: Sizes,
) -> Result<Vec<f64>> {
    let mut session = Session::connect(cluster, side.database())?;
    let mut position = server::wal_position(&mut session)?;
    let mut written = Vec::new();
    for number in 1..=sizes.minutes as u32 {
        progress.wait_until(sizes.minute * number);
        let now = server::wal_position(&mut session)?;
        written.push((now - position) as f64);
        position = now;
    }
    Ok(written)
}
