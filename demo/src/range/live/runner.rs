//! Executes one run, from the start of the servers to the verdict.

use std::{
    fmt, fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};
use idem_cluster::workspace_root;
use tempfile::TempDir;

use super::{
    business::{self, Progress},
    config::{LiveConfig, SENDS_PER_SECOND},
    drain::{Drain, STANDSTILL},
    faults::Faults,
    place::Queue,
    post::{Post, Role, TARGETS},
    processes::{Processes, STRENGTH},
    report::LiveReport,
    servers::Servers,
    verdict, work,
};
use crate::range::{traffic::Traffic, verdict::recorded};

/// The interval between two checks of the processes.
const BEAT: Duration = Duration::from_millis(50);

/// The interval between two reads of the progress in the database.
const BETWEEN_LOOKS: Duration = Duration::from_millis(300);

/// The longest time that a run may take.
const DEADLINE: Duration = Duration::from_secs(600);

/// A snapshot of the progress of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// The number of messages that were sent, duplicates included.
    pub sent: u64,
    /// The progress of the targets, the relay and the observer, read from the database.
    pub progress: Progress,
    /// The number of processes that were killed.
    pub kills: u32,
    /// The number of servers that have crashed and are up again.
    pub crashes: usize,
}

impl fmt::Display for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            sent,
            progress,
            kills,
            crashes,
        } = self;
        write!(
            f,
            "{sent:>6} sent {:>6} handled {:>6} facts {kills:>4} killed {crashes} crashes \
             {:>4} contradictions",
            progress.handled, progress.heard, progress.contradictions,
        )
    }
}

/// Executes a run with processes of `program` (the binary `range-worker`). `show` is called with
/// each new snapshot of the progress.
///
/// # Errors
/// When a server or a process cannot be started, when too many processes end by themselves, when a
/// process does not stop, or at the deadline. Errors of idem are not returned here: they are part
/// of the report.
pub async fn run(
    config: &LiveConfig,
    program: &Path,
    mut show: impl FnMut(&Look),
) -> Result<LiveReport> {
    let parent = workspace_root().join("target/range");
    fs::create_dir_all(&parent)?;
    let mut dir = TempDir::with_prefix_in("run-", &parent)?;
    let traffic = config.field.traffic()?;
    let servers = Servers::start(config, &traffic.positions).await?;
    let post = Post {
        broker: config.broker,
        broker_url: servers.broker_url.clone(),
        database: servers.database.clone(),
        dir: dir.path().to_owned(),
        per_second: SENDS_PER_SECOND,
        unprotected: config.unprotected,
        flaw: None,
        field: config.field.clone(),
    };
    let mut runner = Runner {
        processes: Processes::new(program, &post, &STRENGTH),
        faults: Faults::new(config.field.seed),
        traffic,
        servers,
        dir: dir.path(),
        show: &mut show,
        look: Look::default(),
        looked: Instant::now(),
        changed: Instant::now(),
    };
    let report = match tokio::time::timeout(DEADLINE, runner.play()).await {
        Ok(Ok(played)) => runner.report(config, played).await,
        Ok(Err(error)) => Err(error),
        Err(_) => Err(anyhow!(
            "the run did not finish within {DEADLINE:?}: {:?}",
            runner.look
        )),
    };
    drop(runner);
    if !report
        .as_ref()
        .is_ok_and(|report| report.verdict.is_right() || config.unprotected)
    {
        dir.disable_cleanup(true);
        eprintln!("the logs of the processes are in {}", dir.path().display());
    }
    report
}

struct Runner<'r, S> {
    traffic: Traffic,
    // The processes are dropped before the servers, so that no process runs without servers.
    processes: Processes,
    faults: Faults,
    servers: Servers,
    dir: &'r Path,
    show: &'r mut S,
    look: Look,
    looked: Instant,
    /// The time of the last progress.
    changed: Instant,
}

impl<S: FnMut(&Look)> Runner<'_, S> {
    async fn play(&mut self) -> Result<Duration> {
        let started = Instant::now();
        self.processes.start_all()?;
        self.run_with_faults().await?;
        let Self {
            processes,
            servers,
            look,
            show,
            ..
        } = self;
        let broker = (servers.kind, servers.broker_url.as_str());
        let mut drain = Drain::new(processes, broker, async || {
            look.progress = business::progress(&servers.connect().await?).await?;
            show(look);
            Ok(look.progress)
        })
        .await?;
        // Stop the roles in the order of the message flow, each when no more messages can reach it.
        drain.close(Role::Targets, Queue::Commands).await?;
        drain.until(async |seen| Ok(seen.unpublished == 0)).await?;
        drain.processes.stop(Role::Relay).await?;
        drain.close(Role::Observer, Queue::Observer).await?;
        drain.close(Role::Board, Queue::Board).await?;
        Ok(started.elapsed())
    }

    /// Executes the faults until all commands are handled, or until the run is stalled.
    async fn run_with_faults(&mut self) -> Result<()> {
        let commands = self.traffic.commands.len() as u64;
        loop {
            tokio::time::sleep(BEAT).await;
            let is_all_sent = self.processes.tend()?;
            let handled = self.look.progress.handled;
            let share = handled as f64 / commands as f64;
            self.faults
                .happen(&mut self.processes, &self.servers, share)
                .await?;
            match self.look().await {
                Err(_) if self.faults.server_is_away() => continue,
                looked => looked?,
            }
            let is_done = is_all_sent && handled == commands && self.faults.crashes_are_over();
            let is_stuck = self.is_stalled() && !self.faults.server_is_away();
            if is_stuck || is_done && self.servers.waiting(Queue::Commands).await? == 0 {
                return Ok(());
            }
        }
    }

    fn is_stalled(&self) -> bool {
        self.changed.elapsed() > STANDSTILL
    }

    async fn look(&mut self) -> Result<()> {
        if self.looked.elapsed() < BETWEEN_LOOKS {
            return Ok(());
        }
        let look = Look {
            sent: work::sent(self.dir)?,
            progress: business::progress(&self.servers.connect().await?).await?,
            kills: self.processes.tally().all_kills(),
            crashes: self.faults.crashed().len(),
        };
        self.looked = Instant::now();
        // A higher number of kills alone does not count as progress.
        let kills = look.kills;
        if look != (Look { kills, ..self.look }) {
            self.changed = Instant::now();
        }
        self.look = look;
        (self.show)(&self.look);
        Ok(())
    }

    async fn report(&self, config: &LiveConfig, played: Duration) -> Result<LiveReport> {
        let client = self.servers.connect().await?;
        let attempts = &self.traffic.attempts;
        let recorded = recorded(&client, TARGETS, attempts).await?;
        let (verdict, facts) = verdict::judge(&client, &self.traffic, &recorded, attempts).await?;
        Ok(LiveReport {
            config: config.clone(),
            attempts: attempts.len(),
            sent: work::sent(self.dir)?,
            given: work::given(self.dir, Queue::Commands)?,
            claimed: business::claimed(&client).await?,
            tally: self.processes.tally().clone(),
            crashed: self.faults.crashed().to_vec(),
            facts,
            played,
            verdict,
        })
    }
}
