//! Measures claims with their business update, idem against a hand-written inbox, while both sides
//! remove as many claims as they add.

use std::time::Duration;

use anyhow::{Result, ensure};
use idem_cluster::{Cluster, Install};

use super::load::{Done, Load, Progress, Until, Work};
use super::options::Options;
use super::report::{Rounds, Table, Target};
use super::side::{Order, Side};
use super::wire::Session;
use super::{idem, inbox, server};

/// The number of ids to deliver again. They are sampled before each measurement.
const KNOWN: u64 = 20_000;
/// The interval at which the hand-written inbox deletes expired rows.
const DELETE_EVERY: Duration = Duration::from_secs(1);

/// One line of the table.
#[derive(Clone, Copy)]
struct Setup {
    synchronous_commit: bool,
    clients: usize,
    duplicates: u32,
}

impl Setup {
    fn target(self) -> Target {
        Target::AtLeast(if self.clients >= 8 { 1.15 } else { 0.95 })
    }

    fn name(self) -> String {
        format!(
            "synchronous_commit={:<3} {:>2} clients {:>2} % duplicates",
            if self.synchronous_commit { "on" } else { "off" },
            self.clients,
            self.duplicates
        )
    }
}

pub fn run(install: &Install, options: &Options) -> Result<Vec<Table>> {
    let cluster = server::start(install, "bench-claims", &[])?;
    let retained = options.retained();
    for side in Side::in_turn(0) {
        prepare(&cluster, side, retained)?;
    }
    let mut table = Table::new(
        "claims: BEGIN, claim, business update, COMMIT: transactions per second",
        ["idem", "hand-written"],
    );
    table.note(server::settings(&mut Session::connect(
        &cluster,
        Side::Idem.database(),
    )?)?);
    table.note(format!(
        "{retained} identities retained; {} rounds of {:.1} s for each side, interleaved",
        options.rounds(),
        options.round().as_secs_f64()
    ));
    table.note(
        "hand-written: every second as many rows are deleted as were claimed, oldest first, 1,000 \
         in each statement; autovacuum on",
    );
    table.note(
        "idem: the ring rotates in the middle of every round, and its oldest slice, a sixth of \
         what is retained, is truncated",
    );
    for synchronous_commit in [true, false] {
        for clients in options.client_counts() {
            for duplicates in [0, 10, 50] {
                let setup = Setup {
                    synchronous_commit,
                    clients,
                    duplicates,
                };
                let mut rounds = Rounds::default();
                for round in 0..options.rounds() {
                    for side in Side::in_turn(round) {
                        let rate = measure(&cluster, side, setup, options)?.rate();
                        match side {
                            Side::Idem => rounds.ours.push(rate),
                            Side::HandWritten => rounds.theirs.push(rate),
                        }
                    }
                }
                eprintln!(
                    "{}: idem {:.0?}, hand-written {:.0?}",
                    setup.name(),
                    rounds.ours,
                    rounds.theirs
                );
                table.rounds(&setup.name(), &rounds, setup.target());
            }
        }
    }
    let mut session = Session::connect(&cluster, Side::HandWritten.database())?;
    ensure!(
        inbox::retained(&mut session)? == retained,
        "the number of rows in the hand-written inbox has changed"
    );
    Ok(vec![table])
}

/// Creates the tables of one side and fills them with `retained` identities.
pub fn prepare(cluster: &Cluster, side: Side, retained: u64) -> Result<()> {
    let mut session = Session::connect(cluster, side.database())?;
    server::create_accounts(&mut session)?;
    match side {
        Side::Idem => {
            idem::create(&mut session)?;
            idem::top_up(&mut session, idem::Fill::mid_life(retained))
        }
        Side::HandWritten => {
            inbox::create(&mut session)?;
            inbox::fill(&mut session, retained)
        }
    }
}

fn measure(cluster: &Cluster, side: Side, setup: Setup, options: &Options) -> Result<Done> {
    let mut session = Session::connect(cluster, side.database())?;
    let known = match side {
        Side::Idem => {
            idem::top_up(&mut session, idem::Fill::mid_life(options.retained()))?;
            idem::sample(&mut session, KNOWN, Order::Random)?
        }
        Side::HandWritten => inbox::sample(&mut session, KNOWN, Order::Random)?,
    };
    let load = Load {
        cluster,
        side,
        work: Work::Business,
        clients: setup.clients,
        duplicates: setup.duplicates,
        synchronous_commit: setup.synchronous_commit,
        known: &known,
        until: Until::Time(options.round()),
        record: None,
    };
    let updates_before = updates(&mut session)?;
    let half = options.round() / 2;
    let (done, _) = load.run_with(|progress| match side {
        Side::Idem => {
            progress.wait_until(half);
            idem::rotate(&mut session)
        }
        Side::HandWritten => keep_retention(&mut session, progress),
    })?;
    let mut session = Session::connect(cluster, side.database())?;
    let updates = updates(&mut session)? - updates_before;
    ensure!(
        updates == done.won,
        "{side:?}: {} claims won, but {updates} business updates",
        done.won
    );
    let share = 100.0 * (1.0 - done.won as f64 / done.transactions as f64);
    let wanted = f64::from(setup.duplicates);
    // The tolerance is four standard deviations of independent draws.
    let tolerance = 4.0 * (wanted * (100.0 - wanted) / done.transactions as f64).sqrt();
    ensure!(
        (share - wanted).abs() <= tolerance,
        "{side:?}: {share:.1} % were duplicates instead of {wanted} %"
    );
    Ok(done)
}

/// Once per second, deletes as many rows as claims were won since the last pass. The last pass runs
/// after the load has ended, and is not measured.
pub fn keep_retention(session: &mut Session, progress: &Progress) -> Result<()> {
    let mut deleted = 0;
    let mut pass = DELETE_EVERY;
    loop {
        progress.wait_until(pass);
        let last = progress.has_ended();
        let won = progress.won();
        inbox::forget_oldest(session, won - deleted)?;
        deleted = won;
        pass += DELETE_EVERY;
        if last {
            return Ok(());
        }
    }
}

fn updates(session: &mut Session) -> Result<u64> {
    session.value(server::UPDATES)
}
