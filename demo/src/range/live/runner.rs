//! Executes one run, from the start of the servers to the verdict.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};
use idem_cluster::workspace_root;
use tempfile::TempDir;

use super::{
    LiveConfig, LiveReport, Role,
    business::{self, Progress},
    faults::Faults,
    place::Queue,
    processes::Processes,
    servers::Servers,
    verdict, work,
};
use crate::range::traffic::Traffic;

/// The interval between two checks of the processes.
const BEAT: Duration = Duration::from_millis(50);

/// The interval between two reads of the progress in the database.
const BETWEEN_LOOKS: Duration = Duration::from_millis(300);

/// The time without progress after which a run is stalled. Messages that are not handled by then
/// are lost.
const STANDSTILL: Duration = Duration::from_secs(40);

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
    let mut runner = Runner {
        processes: Processes::new(
            program,
            dir.path(),
            config,
            &servers.broker_url,
            &servers.database,
        ),
        faults: Faults::new(config),
        traffic,
        servers,
        dir: dir.path(),
        show: &mut show,
        look: Look::default(),
        looked: Instant::now(),
        changed: Instant::now(),
    };
    let report = match tokio::time::timeout(config.deadline(), runner.play()).await {
        Ok(Ok(played)) => runner.report(config, played).await,
        Ok(Err(error)) => Err(error),
        Err(_) => Err(anyhow!(
            "the run did not finish within {:?}: {:?}",
            config.deadline(),
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
        // Stop the roles in the order of the message flow, each when no more messages can reach it.
        self.close(Role::Targets, Queue::Commands).await?;
        self.until(async |runner| Ok(runner.look.progress.unpublished == 0))
            .await?;
        self.processes.stop(Role::Relay).await?;
        self.close(Role::Observer, Queue::Observer).await?;
        self.until(async |runner| business::is_all_counted(&runner.servers.connect().await?).await)
            .await?;
        self.close(Role::Board, Queue::Board).await?;
        self.look_now().await?;
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
            if is_done && self.is_empty(Queue::Commands).await? || is_stuck {
                return Ok(());
            }
        }
    }

    /// Stops the processes of a role when their queue is empty. If they return messages to the
    /// queue when they stop, they are started again.
    async fn close(&mut self, role: Role, queue: Queue) -> Result<()> {
        loop {
            self.until(async |runner| runner.is_empty(queue).await)
                .await?;
            self.processes.stop(role).await?;
            if self.servers.left(queue).await? == 0 || self.is_stalled() {
                return Ok(());
            }
            self.processes.start(role)?;
        }
    }

    /// Waits until `reached` returns true, or until the run is stalled. In the second case messages
    /// are lost, and the verdict reports them.
    async fn until(&mut self, reached: impl AsyncFn(&Self) -> Result<bool>) -> Result<()> {
        while !(reached(self).await? || self.is_stalled()) {
            tokio::time::sleep(BETWEEN_LOOKS).await;
            self.processes.tend()?;
            self.look().await?;
        }
        Ok(())
    }

    async fn is_empty(&self, queue: Queue) -> Result<bool> {
        Ok(self.servers.waiting(queue).await? == 0)
    }

    fn is_stalled(&self) -> bool {
        self.changed.elapsed() > STANDSTILL
    }

    async fn look(&mut self) -> Result<()> {
        if self.looked.elapsed() < BETWEEN_LOOKS {
            return Ok(());
        }
        self.look_now().await
    }

    async fn look_now(&mut self) -> Result<()> {
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
        let (verdict, facts) = verdict::judge(&client, &self.traffic).await?;
        Ok(LiveReport {
            config: config.clone(),
            attempts: self.traffic.attempts.len(),
            sent: work::sent(self.dir)?,
            given: work::given(self.dir)?,
            claimed: business::claimed(&client).await?,
            tally: self.processes.tally().clone(),
            crashed: self.faults.crashed().to_vec(),
            facts,
            played,
            verdict,
        })
    }
}
