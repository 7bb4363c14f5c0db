//! Runs a campaign: kills processes and injects faults, then drains the queues, and then makes the
//! ledger.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use idem_cluster::{wait_for, workspace_root};
use idem_runtime::terminated;
use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::checker::{self, Violation};
use super::config::{CampaignConfig, KILL_EVERY, SENDS_PER_SECOND};
use super::faults::Kind;
use super::ledger::{FaultRow, Ledger};
use super::plan::Plan;
use super::site::Site;
use super::watch::Watch;
use super::{drain, progress};
use idem_demo::range::live::{
    Flaw, Post, Role,
    config::argument,
    place::{self, Queue},
    processes::{Processes, Strength},
    work,
};

/// The number of processes of each role.
const STRENGTH: [Strength; 9] = [
    (Role::Producer, 1),
    (Role::Targets, 2),
    (Role::Relay, 2),
    (Role::Board, 1),
    (Role::Observer, 1),
    (Role::Letters, 2),
    (Role::Claims, 2),
    (Role::Leases, 1),
    (Role::Steps, 1),
];

/// The minimum number of kills of each role in a cycle. [`CampaignConfig::cycles`] returns the
/// number of cycles of a campaign.
const KILLS_PER_CYCLE: u64 = 3;

/// The minimum number of rotations of all rings in a cycle.
const ROTATIONS_PER_CYCLE: u64 = 30;

/// The minimum number of maintenance runs by clients in a cycle.
const CALLS_PER_CYCLE: u64 = 30;

/// The minimum number of checks for updated rows in a cycle.
const LOOKS_PER_CYCLE: u64 = 30;

/// The interval between two checks of the processes.
const BEAT: Duration = Duration::from_millis(50);

/// The longest time for the removal of the directory of a campaign. Killed processes must end in
/// this time.
const LAST_PATIENCE: Duration = Duration::from_secs(10);

/// The results of the fault injection.
#[derive(Default)]
struct Injected {
    counts: BTreeMap<Kind, u64>,
    not_recovered: u64,
}

impl Injected {
    /// Counts and prints a fault after which some streams did not continue.
    fn note_recovery(&mut self, stuck: &[&str]) {
        if !stuck.is_empty() {
            eprintln!("not recovered: {}", stuck.join(", "));
            self.not_recovered += 1;
        }
    }
}

/// Runs a campaign with processes of `worker` (the binary `chaos-worker`) and returns its ledger.
/// Returns `None` when SIGINT or SIGTERM ended the campaign. All processes and servers that it
/// started have ended when this function returns.
///
/// # Errors
/// When this process is not permitted to mount disks, when a server or a process fails repeatedly,
/// or at the deadline. Errors of idem are not returned here: they are rows of the ledger.
pub fn run(config: &CampaignConfig, worker: &Path) -> Result<Option<Ledger>> {
    let parent = workspace_root().join("target/chaos");
    fs::create_dir_all(&parent)?;
    let dir = tempfile::Builder::new()
        .prefix("run-")
        .permissions(Permissions::from_mode(0o755))
        .tempdir_in(&parent)?
        .keep();
    eprintln!("the campaign runs in {}", dir.display());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let ended = runtime.block_on(until_ended(config, worker, &dir));
    // Drop the runtime to stop the servers, which its tasks own. The drop waits until blocking
    // tasks have ended.
    drop(runtime);
    let is_kept = match &ended {
        Ok(Some(ledger)) => !ledger.is_green() && config.flaw.is_none(),
        Ok(None) => false,
        Err(_) => true,
    };
    if is_kept {
        eprintln!(
            "the logs of the processes and of the servers are in {}",
            dir.display()
        );
    } else {
        remove(&dir);
    }
    ended
}

async fn until_ended(config: &CampaignConfig, worker: &Path, dir: &Path) -> Result<Option<Ledger>> {
    tokio::select! {
        // The first poll installs the signal handlers, before any process or server is started.
        biased;
        () = terminated() => Ok(None),
        ledger = tokio::time::timeout(config.deadline(), campaign(config, worker, dir)) =>
            match ledger {
                Ok(ledger) => ledger.map(Some),
                Err(_) => bail!("the campaign did not finish within {:?}", config.deadline()),
            },
    }
}

/// Removes the directory of a campaign. Retries, because a process that was killed may still be
/// writing a file.
fn remove(dir: &Path) {
    let is_gone = || Ok(fs::remove_dir_all(dir).is_ok() || !dir.exists());
    if let Err(error) = wait_for("the directory is removed", LAST_PATIENCE, is_gone) {
        eprintln!("cannot remove {}: {error:#}", dir.display());
    }
}

async fn campaign(config: &CampaignConfig, worker: &Path, dir: &Path) -> Result<Ledger> {
    let field = config.field();
    let traffic = field.traffic()?;
    let site = Arc::new(Site::start(config, dir, &traffic.positions).await?);
    let post = Post {
        broker: config.broker,
        broker_url: site.proxied_broker_url.clone(),
        database: site.proxied_database.clone(),
        dir: dir.to_owned(),
        per_second: SENDS_PER_SECOND,
        unprotected: false,
        flaw: config.flaw,
        field,
    };
    let mut processes = Processes::new(worker, &post, &STRENGTH);
    if config.flaw == Some(Flaw::StuckObserver) {
        // With this bug the observer hangs after its connection was lost. A kill would replace the
        // process and hide the bug.
        processes.spare(Role::Observer);
    }
    processes.start_all()?;
    let watch = Watch::start(&site, config.flaw);
    let began = Instant::now();

    let outcome = attack(config, &site, dir, &mut processes).await;
    if outcome.is_err() {
        save_logs(&site, dir).await;
    }
    let injected = outcome?;
    let attacked = began.elapsed();
    eprintln!("all faults are injected; draining the queues");
    for role in [Role::Claims, Role::Leases, Role::Steps, Role::Producer] {
        processes.stop(role).await?;
    }
    let sends = post.field.plan();
    let noted = usize::try_from(work::noted(dir)?)?;
    let sends = &sends[..noted.min(sends.len())];
    let commands = sends.iter().max().map_or(0, |last| last + 1);
    let traffic = traffic.first(commands);
    let left = drain::drain(&site, &mut processes).await?;

    eprintln!("the queues are drained; checking the results");
    let watched = watch.stop().await;
    let mut errors = checker::check(&site, dir, &traffic, &watched).await?;
    errors.insert(Violation::NotRecovered, injected.not_recovered);
    errors.insert(Violation::ProcessEnded, u64::from(processes.tally().ends));
    errors.insert(Violation::NotDrained, left);
    if errors.values().any(|count| *count > 0) {
        save_logs(&site, dir).await;
    }
    let cycles = config.cycles();
    let row = |name: String, count, minimum| FaultRow {
        name,
        count,
        minimum,
    };
    let mut rows: Vec<FaultRow> = processes
        .killed_roles()
        .map(|role| {
            let kills = u64::from(processes.tally().kills_of(role));
            row(
                format!("process killed: {role}"),
                kills,
                cycles * KILLS_PER_CYCLE,
            )
        })
        .collect();
    let count = |kind| injected.counts.get(&kind).copied().unwrap_or_default();
    let minimum = config.minimum();
    rows.extend(Kind::ALL.map(|kind| row(kind.name().to_owned(), count(kind), minimum)));
    let client = site.connect().await?;
    let rotations: i64 = client
        .query_one("SELECT sum(rotations)::bigint FROM idem.ring", &[])
        .await?
        .try_get(0)?;
    rows.push(row(
        "rotations of rings".to_owned(),
        u64::try_from(rotations)?,
        cycles * ROTATIONS_PER_CYCLE,
    ));
    rows.push(row(
        "segments of rings".to_owned(),
        watched.segments,
        cycles * ROTATIONS_PER_CYCLE,
    ));
    rows.push(row(
        "maintenance runs by a client".to_owned(),
        watched.maintenance_calls,
        cycles * CALLS_PER_CYCLE,
    ));
    rows.push(row(
        "checks for updated rows".to_owned(),
        watched.looks_for_updates,
        cycles * LOOKS_PER_CYCLE,
    ));
    let poison = site.poison().len() as u64;
    rows.push(row("poison messages sent".to_owned(), poison, minimum * 10));

    Ok(Ledger {
        header: vec![
            ("broker", place::version(site.kind, &site.broker_url).await?),
            (
                "minutes of faults",
                format!("{:.1}", attacked.as_secs_f64() / 60.0),
            ),
            ("seed", config.seed.to_string()),
            (
                "planted bug",
                config
                    .flaw
                    .map_or("none".to_owned(), |flaw| argument(&flaw)),
            ),
            ("commit", commit()),
            ("PostgreSQL", text(&client, "SHOW server_version").await?),
            (
                "idem",
                text(
                    &client,
                    "SELECT extversion FROM pg_extension WHERE extname = 'idem'",
                )
                .await?,
            ),
        ],
        faults: rows,
        traffic: vec![
            ("commands sent, duplicates included", work::sent(dir)?),
            ("different commands", commands as u64),
            ("attempts among them", traffic.attempts.len() as u64),
            ("commands delivered", work::given(dir, Queue::Commands)?),
            (
                "facts received, duplicates included",
                number(&client, "SELECT count(*) FROM heard").await?,
            ),
            (
                "claims of the clients without a broker",
                number(&client, "SELECT count(*) FROM claimed").await?,
            ),
            (
                "leases of these clients",
                number(&client, "SELECT count(*) FROM leased").await?,
            ),
            (
                "completions of these leases",
                number(&client, "SELECT count(*) FROM completed").await?,
            ),
            (
                "steps sent",
                number(&client, "SELECT sum(n)::bigint FROM step").await?,
            ),
            (
                "largest size of inbox and outbox, in bytes",
                watched.most_bytes,
            ),
        ],
        errors,
    })
}

/// Kills processes and injects faults until the configured minutes are over and each fault has
/// happened its minimum number of times.
async fn attack(
    config: &CampaignConfig,
    site: &Site,
    dir: &Path,
    processes: &mut Processes,
) -> Result<Injected> {
    let mut dice = StdRng::seed_from_u64(config.seed);
    let mut next_kill = Instant::now() + KILL_EVERY;
    // During a recovery no process is killed: a kill would replace a process that hangs after a
    // fault, and hide the hang.
    let is_recovering = Cell::new(true);
    let mut faults = std::pin::pin!(inject(config, site, dir, &is_recovering));
    loop {
        tokio::select! {
            injected = &mut faults => {
                let injected = injected?;
                // Continue until the processes of each role were killed their minimum number of
                // times.
                let enough = u32::try_from(config.cycles() * KILLS_PER_CYCLE)?;
                let lacks = |processes: &Processes, role| processes.tally().kills_of(role) < enough;
                while processes.killed_roles().any(|role| lacks(processes, role)) {
                    tend(processes)?;
                    processes.strike(&mut dice).await?;
                    tokio::time::sleep(KILL_EVERY / 2).await;
                }
                return Ok(injected);
            }
            () = tokio::time::sleep(BEAT) => {
                tend(processes)?;
                if Instant::now() >= next_kill && !is_recovering.get() {
                    processes.strike(&mut dice).await?;
                    next_kill = Instant::now() + KILL_EVERY.mul_f64(dice.random_range(0.5..1.5));
                }
            }
        }
    }
}

/// Restarts processes that have ended by themselves.
///
/// Returns an error when the producer has sent all its messages. This must not happen, because the
/// traffic has more messages than the producer can send during the faults.
fn tend(processes: &mut Processes) -> Result<()> {
    if processes.tend()? {
        bail!("the producer sent all its messages before the faults and kills were complete");
    }
    Ok(())
}

/// Injects faults one after the other. `is_recovering` is true after the start and after each
/// fault, until every stream has continued.
async fn inject(
    config: &CampaignConfig,
    site: &Site,
    dir: &Path,
    is_recovering: &Cell<bool>,
) -> Result<Injected> {
    let mut plan = Plan::new(config.seed);
    let mut dice = plan.dice();
    let mut injected = Injected::default();
    let began = Instant::now();
    let is_enough = |injected: &Injected| {
        let count = |kind| injected.counts.get(kind).copied().unwrap_or_default();
        Kind::ALL.iter().all(|kind| count(kind) >= config.minimum())
    };
    injected.note_recovery(&progress::stuck_streams(site, dir).await);
    is_recovering.set(false);
    while began.elapsed() < config.duration()
        || (!is_enough(&injected) && began.elapsed() < config.longest())
    {
        let Some(kind) = plan.next() else { break };
        let struck = Instant::now();
        let has_effect = kind.strike(site, &mut dice).await.context(kind.name())?;
        *injected.counts.entry(kind).or_default() += u64::from(has_effect);
        let (held, healed) = (struck.elapsed(), Instant::now());
        is_recovering.set(true);
        injected.note_recovery(&progress::stuck_streams(site, dir).await);
        is_recovering.set(false);
        eprintln!(
            "{:>6.0} s  {}: {:.1} s{}, recovered after {:.1} s",
            began.elapsed().as_secs_f64(),
            kind.name(),
            held.as_secs_f64(),
            if has_effect {
                ""
            } else {
                " without a visible effect"
            },
            healed.elapsed().as_secs_f64()
        );
    }
    Ok(injected)
}

/// Returns the number that a query returns, or 0 for NULL.
async fn number(client: &tokio_postgres::Client, sql: &str) -> Result<u64> {
    let number: Option<i64> = client.query_one(sql, &[]).await?.try_get(0)?;
    Ok(u64::try_from(number.unwrap_or_default())?)
}

async fn text(client: &tokio_postgres::Client, sql: &str) -> Result<String> {
    Ok(client.query_one(sql, &[]).await?.try_get(0)?)
}

/// Writes the logs of the servers into the directory with the logs of the processes.
async fn save_logs(site: &Site, dir: &Path) {
    match site.with_pair(|pair| pair.log()).await {
        Ok(log) => {
            let _ = fs::write(dir.join("all-servers.log"), log);
        }
        Err(error) => eprintln!("cannot read the logs of the servers: {error:#}"),
    }
}

/// Returns the commit that is checked out, with `-dirty` when there are changes.
fn commit() -> String {
    let git = Command::new("git")
        .args([
            "describe",
            "--always",
            "--dirty",
            "--abbrev=12",
            "--exclude=*",
        ])
        .current_dir(workspace_root())
        .output();
    match git {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        _ => "unknown".to_owned(),
    }
}
