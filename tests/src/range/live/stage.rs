//! One run from the start of the servers to the verdict: who is killed when, and when it is over.

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
    crew::Crew,
    mishaps::Mishaps,
    place::Queue,
    servers::Servers,
    verdict, work,
};
use crate::range::traffic::Traffic;

/// How long between two looks at the crew.
const BEAT: Duration = Duration::from_millis(50);

/// How long between two looks at the database.
const BETWEEN_LOOKS: Duration = Duration::from_millis(300);

/// When nothing has changed for so long, nothing will: what is missing then is lost.
const STANDSTILL: Duration = Duration::from_secs(40);

/// A look at a run while it goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// What has been sent, duplicates included.
    pub sent: u64,
    /// How far the others are.
    pub progress: Progress,
    /// How many processes have been killed.
    pub kills: u32,
    /// How many servers have crashed and are back.
    pub crashes: usize,
}

/// Plays a run with processes of `program` (the binary `range-worker`) before an audience.
///
/// # Errors
/// When something cannot be started, when a process ends by itself again and again or does not end
/// when it is told to, or at the deadline. Errors of idem are not errors but in the report.
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
    let mut stage = Stage {
        crew: Crew::new(
            program,
            dir.path(),
            config,
            &servers.broker_url,
            &servers.database,
        ),
        mishaps: Mishaps::new(config),
        traffic,
        servers,
        dir: dir.path(),
        show: &mut show,
        look: Look::default(),
        looked: Instant::now(),
        changed: Instant::now(),
    };
    let report = match tokio::time::timeout(config.deadline(), stage.play()).await {
        Ok(Ok(played)) => stage.report(config, played).await,
        Ok(Err(error)) => Err(error),
        Err(_) => Err(anyhow!(
            "not done after {:?}: {:?}",
            config.deadline(),
            stage.look
        )),
    };
    drop(stage);
    if !report
        .as_ref()
        .is_ok_and(|report| report.verdict.is_right() || config.unprotected)
    {
        dir.disable_cleanup(true);
        eprintln!("the logs of the processes are in {}", dir.path().display());
    }
    report
}

struct Stage<'r, S> {
    traffic: Traffic,
    // Before the servers, so that nobody works without them.
    crew: Crew,
    mishaps: Mishaps,
    servers: Servers,
    dir: &'r Path,
    show: &'r mut S,
    look: Look,
    looked: Instant,
    /// When anything was done last.
    changed: Instant,
}

impl<S: FnMut(&Look)> Stage<'_, S> {
    async fn play(&mut self) -> Result<Duration> {
        let started = Instant::now();
        self.crew.start_all()?;
        self.fight().await?;
        // The closing time goes down the stream: who has nothing more to come finishes and leaves.
        self.close(Role::Targets, Queue::Commands).await?;
        self.until(async |stage| Ok(stage.look.progress.unpublished == 0))
            .await?;
        self.crew.stop(Role::Relay).await?;
        self.close(Role::Observer, Queue::Observer).await?;
        self.until(async |stage| business::is_all_counted(&stage.servers.connect().await?).await)
            .await?;
        self.close(Role::Board, Queue::Board).await?;
        self.look_now().await?;
        Ok(started.elapsed())
    }

    /// Until all commands are handled, somebody is killed now and then.
    async fn fight(&mut self) -> Result<()> {
        let commands = self.traffic.commands.len() as u64;
        loop {
            tokio::time::sleep(BEAT).await;
            let is_all_sent = self.crew.tend()?;
            let handled = self.look.progress.handled;
            let share = handled as f64 / commands as f64;
            self.mishaps
                .happen(&mut self.crew, &self.servers, share)
                .await?;
            match self.look().await {
                Err(_) if self.mishaps.server_is_away() => continue,
                looked => looked?,
            }
            let is_done = is_all_sent && handled == commands && self.mishaps.crashes_are_over();
            let is_stuck = self.stands_still() && !self.mishaps.server_is_away();
            if is_done && self.is_empty(Queue::Commands).await? || is_stuck {
                return Ok(());
            }
        }
    }

    /// Stops everybody of a role when nothing waits for them, and nothing comes back from them.
    async fn close(&mut self, role: Role, queue: Queue) -> Result<()> {
        loop {
            self.until(async |stage| stage.is_empty(queue).await)
                .await?;
            self.crew.stop(role).await?;
            if self.is_empty(queue).await? || self.stands_still() {
                return Ok(());
            }
            self.crew.start(role)?;
        }
    }

    /// Waits for this, or until nothing changes any more: then something is lost, which the verdict
    /// will say.
    async fn until(&mut self, reached: impl AsyncFn(&Self) -> Result<bool>) -> Result<()> {
        while !(reached(self).await? || self.stands_still()) {
            tokio::time::sleep(BETWEEN_LOOKS).await;
            self.crew.tend()?;
            self.look().await?;
        }
        Ok(())
    }

    async fn is_empty(&self, queue: Queue) -> Result<bool> {
        Ok(self.servers.waiting(queue).await? == 0)
    }

    fn stands_still(&self) -> bool {
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
            kills: self.crew.tally().all_kills(),
            crashes: self.mishaps.crashed().len(),
        };
        self.looked = Instant::now();
        // Kills alone change nothing.
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
            tally: self.crew.tally().clone(),
            crashed: self.mishaps.crashed().to_vec(),
            facts,
            played,
            verdict,
        })
    }
}
