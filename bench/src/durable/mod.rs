//! Measures the durable inbox against job queues from npm: the same jobs are sent, processed and
//! completed, on the same server in one run.
//!
//! Each system has its own database, with the same business table in it. A job is done when its row
//! exists. Every drain ends with a check: each job was done once, and nothing is left in the queue.

mod facts;
mod npm;
mod ours;

use anyhow::{Context, Result};
use idem_cluster::{Cluster, Install};

use super::options::Options;
use super::report::{Rounds, Table, Target};
use super::server;
use super::wire::Session;
use facts::Facts;
use npm::Npm;
use ours::Transactions;

/// The number of jobs that are handled concurrently in every system. `job.mjs` has the same number.
const WORKERS: usize = 8;
/// The number of messages that are sent together in every system. The programs have the same
/// number.
const SENT_TOGETHER: usize = 100;

/// A system that does the jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    Idem(Transactions),
    /// The name of the system in `main.mjs`.
    Npm(&'static str),
}

const SYSTEMS: [System; 5] = [
    System::Idem(Transactions::PerJob),
    System::Idem(Transactions::PerBatch),
    System::Npm("graphile-worker"),
    System::Npm("pg-boss"),
    System::Npm("pg-boss-transactional"),
];

impl System {
    fn is_ours(self) -> bool {
        matches!(self, Self::Idem(_))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Idem(Transactions::PerJob) => "idem, a transaction per job",
            Self::Idem(Transactions::PerBatch) => "idem, a transaction per 100 jobs",
            Self::Npm("graphile-worker") => {
                "graphile-worker (job and completion in separate transactions)"
            }
            Self::Npm("pg-boss") => "pg-boss (jobs and completion in separate transactions)",
            Self::Npm("pg-boss-transactional") => "pg-boss, a transaction per 100 jobs",
            Self::Npm(other) => other,
        }
    }

    fn database(self) -> &'static str {
        match self {
            Self::Idem(transactions) => transactions.destination(),
            Self::Npm(name) => name,
        }
    }

    /// Returns the target for the jobs per second, against the best system of npm.
    fn speed(self) -> Target {
        match self {
            Self::Idem(Transactions::PerJob) => Target::AtLeast(2.0),
            Self::Idem(Transactions::PerBatch) => Target::AtLeast(3.5),
            Self::Npm(_) => Target::None,
        }
    }
}

/// The figures of one system in one round: rates per second.
#[derive(Clone, Copy, Debug)]
struct Round {
    enqueued: f64,
    processed: f64,
    whole: f64,
}

pub fn run(install: &Install, options: &Options) -> Result<Vec<Table>> {
    let npm = Npm::install()?;
    let cluster = server::start(install, "bench-inbox", &[])?;
    let mut bench = Bench {
        npm,
        cluster: &cluster,
        settings: Vec::new(),
        sent: 0,
        jobs: options.sized(20_000, 1_000),
    };
    for system in SYSTEMS {
        bench.set_up(system)?;
    }
    let free = bench.rounds(options.rounds())?;
    let holders = SYSTEMS
        .iter()
        .map(|system| hold(&cluster, system.database()))
        .collect::<Result<Vec<_>>>()?;
    eprintln!("holding a transaction open in each database");
    // The first rounds are not counted. They leave tens of thousands of dead rows, which the open
    // transactions keep from being removed, so that the measurement shows the cost of these rows.
    let warm = options.sized(2, 1);
    let held = bench.rounds(warm + options.rounds())?;
    for mut holder in holders {
        // This query fails unless the transaction was open all the time.
        holder.run("SELECT count(*) FROM holder")?;
        holder.run("ROLLBACK")?;
    }
    let held: Vec<_> = held
        .into_iter()
        .map(|mut rounds| rounds.split_off(warm))
        .collect();
    let mut tables = compare(&free);
    if let Some(table) = tables.first_mut() {
        bench.describe(table)?;
    }
    tables.push(flatness(&free, &held, warm, &bench));
    Ok(tables)
}

/// Opens a transaction with a snapshot and a transaction id, so that rows that die later cannot be
/// removed.
fn hold(cluster: &Cluster, database: &str) -> Result<Session> {
    let mut holder = Session::connect(cluster, database)?;
    holder.run("BEGIN ISOLATION LEVEL REPEATABLE READ")?;
    holder.run("INSERT INTO holder SELECT count(*) FROM holder")?;
    Ok(holder)
}

/// The state that the rounds share.
struct Bench<'a> {
    npm: Npm,
    cluster: &'a Cluster,
    settings: Vec<String>,
    /// The number of the next message.
    sent: u64,
    jobs: u64,
}

impl Bench<'_> {
    fn set_up(&mut self, system: System) -> Result<()> {
        let database = system.database();
        self.cluster.run("createdb", [database], &[])?;
        let mut session = Session::connect(self.cluster, database)?;
        Facts::create(&mut session)?;
        session.run("CREATE TABLE holder (n int8)")?;
        let settings = match system {
            System::Idem(transactions) => {
                session.run("CREATE EXTENSION idem")?;
                transactions.settings()
            }
            System::Npm(name) => self.npm.set_up(self.cluster, name, database)?,
        };
        self.settings.push(format!("{}: {settings}", system.name()));
        Ok(())
    }

    /// Runs all systems alternately and returns the figures of each system in each round.
    fn rounds(&mut self, rounds: usize) -> Result<Vec<Vec<Round>>> {
        let mut all = vec![Vec::new(); SYSTEMS.len()];
        for round in 0..rounds {
            for turn in 0..SYSTEMS.len() {
                // The order rotates. In a fixed order, each system would always run after the same
                // other system, on the state in which that system has left the server.
                let index = (turn + round) % SYSTEMS.len();
                let figures = self
                    .round(SYSTEMS[index])
                    .with_context(|| SYSTEMS[index].name())?;
                eprintln!(
                    "{}: sent {:.0}/s, done {:.0}/s",
                    SYSTEMS[index].name(),
                    figures.enqueued,
                    figures.processed
                );
                all[index].push(figures);
            }
        }
        Ok(all)
    }

    fn round(&mut self, system: System) -> Result<Round> {
        let jobs = self.jobs;
        let first = self.sent;
        self.sent += jobs;
        let (enqueueing, left) = match system {
            System::Idem(transactions) => (
                transactions.enqueue(self.cluster, system.database(), first, jobs)?,
                transactions.left(),
            ),
            System::Npm(name) => {
                self.npm
                    .enqueue(self.cluster, name, system.database(), first, jobs)?
            }
        };
        match system {
            System::Idem(transactions) => {
                transactions.drain(self.cluster, system.database(), jobs)?
            }
            System::Npm(name) => self
                .npm
                .drain(self.cluster, name, system.database(), jobs)?,
        }
        let mut session = Session::connect(self.cluster, system.database())?;
        let processing = Facts::take(&mut session, first, jobs)?;
        let left: u64 = session.value(&left)?;
        anyhow::ensure!(left == 0, "{left} jobs are left");
        Ok(Round {
            enqueued: jobs as f64 / enqueueing,
            processed: jobs as f64 / processing,
            whole: jobs as f64 / (enqueueing + processing),
        })
    }

    fn describe(&self, table: &mut Table) -> Result<()> {
        table.note(format!(
            "{} messages of 200 bytes a round, sent {SENT_TOGETHER} at a time by {WORKERS} \
             producers, then handled by {WORKERS} workers: one INSERT of a fact for each job",
            self.jobs
        ));
        table.note(
            "from the first fact to the last by the server's clock; every job was done exactly \
             once in every round, and no queue kept a job",
        );
        for settings in &self.settings {
            table.note(settings);
        }
        let mut session = Session::connect(self.cluster, SYSTEMS[0].database())?;
        table.note(server::settings(&mut session)?);
        Ok(())
    }
}

/// Returns the systems of idem, which are the first ones.
fn ours() -> impl Iterator<Item = System> {
    SYSTEMS.into_iter().take_while(|system| system.is_ours())
}

/// Compares idem with the best of the npm systems in the same round.
fn compare(all: &[Vec<Round>]) -> Vec<Table> {
    type Figure = fn(&Round) -> f64;
    type Goal = fn(System) -> Target;
    let parts: [(&str, Figure, Goal); 3] = [
        (
            "inbox, sent durably: messages/s",
            |round| round.enqueued,
            |_| Target::None,
        ),
        (
            "inbox, processed and completed: jobs/s",
            |round| round.processed,
            System::speed,
        ),
        (
            "inbox, sent, processed and completed: jobs/s",
            |round| round.whole,
            System::speed,
        ),
    ];
    let rounds = all.first().map_or(0, Vec::len);
    parts
        .into_iter()
        .map(|(title, figure, target)| {
            let best: Vec<f64> = (0..rounds)
                .map(|round| {
                    SYSTEMS
                        .iter()
                        .zip(all)
                        .filter(|(system, _)| !system.is_ours())
                        .map(|(_, rounds)| figure(&rounds[round]))
                        .fold(0.0, f64::max)
                })
                .collect();
            let mut table = Table::new(title, ["idem", "best npm system"]);
            for (system, rounds) in ours().zip(all) {
                let figures = Rounds {
                    ours: rounds.iter().map(figure).collect(),
                    theirs: best.clone(),
                };
                table.rounds(system.name(), &figures, target(system));
            }
            table
        })
        .collect()
}

/// Compares the rates of idem while the transaction is held open with its own rates before.
fn flatness(free: &[Vec<Round>], held: &[Vec<Round>], warm: usize, bench: &Bench<'_>) -> Table {
    let mut table = Table::new(
        "inbox beside an open transaction in another session: processed and completed, jobs/s",
        ["beside it", "before it"],
    );
    table.note(format!(
        "REPEATABLE READ transaction that has read and written, in the same database; each system \
         processed {} jobs before the first measured round, {} in all",
        bench.jobs * warm as u64,
        bench.jobs * (warm + held.first().map_or(0, Vec::len)) as u64,
    ));
    for (system, (free, held)) in ours().zip(free.iter().zip(held)) {
        let figures = Rounds {
            ours: held.iter().map(|round| round.processed).collect(),
            theirs: free.iter().map(|round| round.processed).collect(),
        };
        table.rounds(system.name(), &figures, Target::AtLeast(0.95));
    }
    table
}
