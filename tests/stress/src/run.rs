//! A run: clients, faults, rotation and an auditor on one cluster, until the ring has rotated often
//! enough.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use idem_cluster::Cluster;
use idem_testkit::ring::{OPEN_SEGMENTS, SEALED};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;
use tokio_postgres::Error;

use super::checker::{Answer, Handled, Look, Verdict, check, repeated};
use super::line::{connect, expect_kill};
use super::window::Window;
use super::{broken, chaos, client, import, outside};

/// The time between two checks of the business table during a run.
const BETWEEN_CHECKS: Duration = Duration::from_secs(1);

/// The retention of the broken variants. It is short, because the variants fail at rotations:
/// frequent rotations make them fail sooner.
const BROKEN_RETENTION: Duration = Duration::from_millis(300);

/// The process that rotates the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotation {
    /// The background worker, and a session that runs `idem_maintain()` at the same time.
    WorkerAndCalls,
    /// A session that runs `idem_maintain()`.
    Calls,
    /// [`broken`]: an immediate rotation without opening and fence.
    AtOnce,
}

/// The condition that ends a run.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    /// The run has lasted for `run_for` and has reached the coverage `least`. On a busy machine the
    /// coverage takes longer.
    Covered { run_for: Duration, least: Coverage },
    /// A message was handled twice.
    Double,
}

/// The numbers of events during a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Rotations of the ring.
    pub rotations: i64,
    /// Sessions that were terminated with `pg_terminate_backend`.
    pub terminated: u64,
    /// Crashes after which the server recovered.
    pub crashed: u64,
    /// Moves of the destination from one ring to another.
    pub moved: u64,
    /// Rotations of the pending messages.
    pub pending_rotations: u64,
    /// Steps of the rotation of the payloads.
    pub payload_steps: u64,
    /// Messages that were imported by another command than a claim.
    pub imported: u64,
    /// Complete filters of sealed slices that were seen, once a second: without them the claims
    /// read each slice.
    pub complete_filters: u64,
    /// Segments that were opened in a ring.
    pub segments: u64,
}

impl Coverage {
    /// Returns whether every number has reached that of `least`.
    #[must_use]
    pub fn reaches(&self, least: &Self) -> bool {
        self.rotations >= least.rotations
            && self.terminated >= least.terminated
            && self.crashed >= least.crashed
            && self.moved >= least.moved
            && self.pending_rotations >= least.pending_rotations
            && self.payload_steps >= least.payload_steps
            && self.imported >= least.imported
            && self.complete_filters >= least.complete_filters
            && self.segments >= least.segments
    }
}

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// The number of clients that claim.
    pub clients: i64,
    /// The number of clients that work outside the transaction: see [`outside`].
    pub outside: i64,
    /// The function that completes a lease: `idem_complete` or a broken variant.
    pub complete_function: String,
    /// The time that the ring retains claims.
    pub retention: Duration,
    /// The function that claims: `idem_try_claim` or a broken variant.
    pub claim_function: String,
    /// The largest number of reads, each a round trip, between the snapshot of a transaction and
    /// its first claim.
    pub work_before_claims: i32,
    /// The largest number of reads, each a round trip, between two claims of a transaction.
    pub work_between_claims: i32,
    /// Whether `claim_function` may fail with 40001 or 40P01.
    pub conflicts_allowed: bool,
    /// The process that rotates the ring.
    pub rotation: Rotation,
    /// Whether sessions are killed.
    pub kills: bool,
    /// Whether the destination moves between two rings.
    pub moves: bool,
    /// Whether another command than a claim inserts rows.
    pub imports: bool,
    /// Whether such a row invalidates the filter of its slice.
    pub invalidates_filters: bool,
    /// The condition that ends the run.
    pub goal: Goal,
    /// The time after which a run that has not reached its goal fails.
    pub deadline: Duration,
    /// The seed of the random decisions of the clients.
    pub seed: u64,
}

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The result of the checker.
    pub verdict: Verdict,
    /// The result of the check of the clients outside the transaction.
    pub outside: outside::Verdict,
    /// The numbers of events during the run.
    pub coverage: Coverage,
    /// The number of rows of the business table.
    pub handled: usize,
    /// The number of claims that returned `false`.
    pub duplicates: usize,
    /// The number of sessions that clients lost.
    pub sessions_lost: u64,
    /// The duration of the run.
    pub took: Duration,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub terminated: AtomicU64,
    pub crashed: AtomicU64,
    pub moved: AtomicU64,
    pub imported: AtomicU64,
    pub complete_filters: AtomicU64,
    pub segments: AtomicU64,
    pub sessions_lost: AtomicU64,
}

/// The state that all tasks of a run share.
pub(super) struct Arena {
    pub config: Config,
    pub cluster: Arc<Cluster>,
    pub url: String,
    pub window: Window,
    pub counts: Counts,
    pub rotations: outside::Rotations,
    open: AtomicBool,
    committed: Mutex<Vec<Handled>>,
}

impl Arena {
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// Adds claims that were reported committed. Drops claims that are older than the retention,
    /// because they may be forgotten.
    pub fn publish(&self, claims: impl Iterator<Item = Handled>) {
        let mut committed = self
            .committed
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        committed.extend(claims);
        let retention = i64::try_from(self.config.retention.as_micros()).unwrap_or(i64::MAX);
        let newest = committed
            .iter()
            .map(|claim| claim.before)
            .max()
            .unwrap_or(0);
        committed.retain(|claim| claim.before + retention > newest);
    }

    fn coverage(&self, rotations: i64) -> Coverage {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Coverage {
            rotations,
            terminated: count(&self.counts.terminated),
            crashed: count(&self.counts.crashed),
            moved: count(&self.counts.moved),
            pending_rotations: count(&self.rotations.pending),
            payload_steps: count(&self.rotations.payloads),
            imported: count(&self.counts.imported),
            complete_filters: count(&self.counts.complete_filters),
            segments: count(&self.counts.segments),
        }
    }
}

/// Runs the clients in a new database of the cluster and checks their results.
///
/// # Errors
/// Fails when the goal is not reached in time, or when the server returns an error that no kill
/// explains.
pub async fn run(cluster: Arc<Cluster>, config: Config) -> Result<Outcome> {
    let url = cluster.connection_string("stress");
    let retention = i64::try_from(config.retention.as_micros())?;
    prepare(&cluster, &config).await?;
    let arena = Arc::new(Arena {
        window: Window::new(config.retention * 4),
        url,
        cluster,
        counts: Counts::default(),
        rotations: outside::Rotations::default(),
        open: AtomicBool::new(true),
        committed: Mutex::default(),
        config,
    });
    let began = Instant::now();

    let mut clients = JoinSet::new();
    for number in 0..arena.config.clients {
        clients.spawn(client::work(Arc::clone(&arena), number));
    }
    let mut outsiders = JoinSet::new();
    for number in 0..arena.config.outside {
        outsiders.spawn(outside::work(
            Arc::clone(&arena),
            arena.config.clients + number,
        ));
    }
    let mut helpers = JoinSet::new();
    if arena.config.outside > 0 {
        helpers.spawn(outside::rotate(Arc::clone(&arena)));
    }
    helpers.spawn(rotate(Arc::clone(&arena)));
    if arena.config.kills {
        helpers.spawn(chaos::strike(Arc::clone(&arena)));
    }
    if arena.config.moves {
        helpers.spawn(chaos::move_destination(Arc::clone(&arena)));
    }
    if arena.config.imports {
        let number = arena.config.clients + arena.config.outside;
        helpers.spawn(import::work(Arc::clone(&arena), number));
    }
    let auditor = tokio::spawn(audit(Arc::clone(&arena)));

    let reached = reach_goal(&arena, began).await;
    arena.open.store(false, Ordering::Relaxed);
    let mut results: Vec<Answer> = clients
        .join_all()
        .await
        .into_iter()
        .collect::<Result<Vec<_>>>()?
        .concat();
    let mut told = outside::together(
        outsiders
            .join_all()
            .await
            .into_iter()
            .collect::<Result<Vec<_>>>()?,
    );
    results.append(&mut told.answers);
    helpers
        .join_all()
        .await
        .into_iter()
        .collect::<Result<()>>()?;
    let looks = auditor.await??;
    reached?;

    let observer = connect(&arena.url).await?;
    let mut outside_verdict = outside::Verdict::default();
    if arena.config.outside > 0 {
        outside::drain(&observer).await?;
        outside_verdict = outside::check(&told, &handled(&observer).await?, retention);
        outside_verdict.dead_letters = observer
            .query_one("SELECT count(*) FROM idem.dead_letter", &[])
            .await?
            .try_get(0)?;
    }
    let handled = handled(&observer).await?;
    Ok(Outcome {
        verdict: check(&handled, &results, &looks, retention),
        outside: outside_verdict,
        coverage: arena.coverage(count_rotations(&observer).await?),
        handled: handled.len(),
        duplicates: results.iter().filter(|result| !result.claimed).count(),
        sessions_lost: arena.counts.sessions_lost.load(Ordering::Relaxed),
        took: began.elapsed(),
    })
}

async fn prepare(cluster: &Cluster, config: &Config) -> Result<()> {
    connect(&cluster.connection_string("postgres"))
        .await?
        .batch_execute("CREATE DATABASE stress")
        .await?;
    let client = connect(&cluster.connection_string("stress")).await?;
    client
        .batch_execute(
            "CREATE EXTENSION idem;
             CREATE TABLE handled (
                 attempt bigint, identity bigint, before bigint, after bigint, xid xid8
             );
             CREATE TABLE work (place integer, weight integer);
             INSERT INTO work SELECT n % 100, n FROM generate_series(1, 2000) n;
             CREATE INDEX ON work (place);
             ANALYZE work",
        )
        .await?;
    for function in broken::SCHEMA {
        client.batch_execute(function).await?;
    }
    if config.outside > 0 {
        client.batch_execute(outside::SCHEMA).await?;
    }
    client.batch_execute(import::SCHEMA).await?;
    client.batch_execute(OPEN_SEGMENTS).await?;
    if !config.invalidates_filters {
        client.batch_execute(broken::KEEP_FILTERS).await?;
    }
    // This order keeps short <= standard <= long at every step.
    for (ring, share) in [("short", 0.5), ("standard", 1.0), ("long", 1.5)] {
        let keeps = config.retention.mul_f64(share).as_millis();
        client
            .batch_execute(&format!(
                "SELECT idem_set_retention('{ring}', '{keeps} milliseconds')"
            ))
            .await?;
    }
    Ok(())
}

async fn rotate(arena: Arc<Arena>) -> Result<()> {
    if arena.config.rotation == Rotation::AtOnce {
        return broken::rotate(&arena, arena.config.retention / SEALED as u32).await;
    }
    while arena.is_open() {
        let client = connect(&arena.url).await?;
        let mut rhythm = tokio::time::interval(Duration::from_millis(20));
        while arena.is_open() {
            rhythm.tick().await;
            match maintain(&client).await {
                Ok(segments) => arena.counts.segments.fetch_add(segments, Ordering::Relaxed),
                Err(error) => {
                    expect_kill(error)?;
                    break;
                }
            };
        }
    }
    Ok(())
}

/// Runs a maintenance pass, and then opens a segment in each ring that is steady. Returns the
/// number of these rings.
async fn maintain(client: &tokio_postgres::Client) -> Result<u64, Error> {
    client.batch_execute("CALL idem_maintain()").await?;
    let opened: i64 = client
        .query_one("SELECT open_segments()", &[])
        .await?
        .try_get(0)?;
    Ok(opened.unsigned_abs())
}

/// Looks up claims that were reported committed, until the run ends.
async fn audit(arena: Arc<Arena>) -> Result<Vec<Look>> {
    let mut rng = SmallRng::seed_from_u64(arena.config.seed ^ 0xA0D1);
    let mut looks = Vec::new();
    if arena.config.claim_function != "idem_try_claim" {
        return Ok(looks);
    }
    while arena.is_open() {
        let client = connect(&arena.url).await?;
        while arena.is_open() {
            let asked: Vec<Handled> = {
                let committed = arena
                    .committed
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                let choose = |_| {
                    (!committed.is_empty()).then(|| committed[rng.random_range(0..committed.len())])
                };
                (0..20).filter_map(choose).collect()
            };
            match look(&client, &asked).await {
                Ok(seen) => looks.extend(seen),
                Err(error) => {
                    expect_kill(error)?;
                    break;
                }
            }
            // This pause limits the auditor to the load of one client.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(looks)
}

async fn look(client: &tokio_postgres::Client, asked: &[Handled]) -> Result<Vec<Look>, Error> {
    let ids: Vec<String> = asked
        .iter()
        .map(|claim| format!("message {}", claim.identity))
        .collect();
    let rows = client
        .query(
            "SELECT idem_is_claimed(id, 'stress'), \
                    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint \
             FROM unnest($1::text[]) id",
            &[&ids],
        )
        .await?;
    rows.iter()
        .zip(asked)
        .map(|(row, claim)| {
            Ok(Look {
                identity: claim.identity,
                claimed_from: claim.before,
                looked_until: row.try_get(1)?,
                found: row.try_get(0)?,
            })
        })
        .collect()
}

async fn reach_goal(arena: &Arena, began: Instant) -> Result<()> {
    let retention = i64::try_from(arena.config.retention.as_micros())?;
    loop {
        tokio::time::sleep(BETWEEN_CHECKS).await;
        let client = connect(&arena.url).await?;
        let seen = async {
            let rotations = count_rotations(&client).await?;
            if let Some(count) = u32::try_from(rotations).ok().filter(|count| *count > 0) {
                arena.window.follow(began.elapsed() / count);
            }
            let filters = count_complete_filters(&client).await?;
            let seen = &arena.counts.complete_filters;
            seen.fetch_add(filters, Ordering::Relaxed);
            let reached = match arena.config.goal {
                Goal::Covered { run_for, ref least } => {
                    began.elapsed() >= run_for && arena.coverage(rotations).reaches(least)
                }
                Goal::Double => !repeated(&handled(&client).await?, retention).0.is_empty(),
            };
            Ok((reached, rotations))
        };
        match seen.await {
            Ok((true, _)) => return Ok(()),
            Ok((false, rotations)) if began.elapsed() > arena.config.deadline => {
                bail!(
                    "{:?} was not reached within {:?}; the run has met {:?}",
                    arena.config.goal,
                    arena.config.deadline,
                    arena.coverage(rotations)
                )
            }
            Ok((false, _)) => {}
            Err(error) => expect_kill(error)?,
        }
    }
}

async fn count_rotations(client: &tokio_postgres::Client) -> Result<i64, Error> {
    client
        .query_one(
            "SELECT rotations FROM idem.ring WHERE name = 'standard'",
            &[],
        )
        .await?
        .try_get(0)
}

async fn count_complete_filters(client: &tokio_postgres::Client) -> Result<u64, Error> {
    let sql = "SELECT count(*) FROM idem.filters f JOIN idem.rings r USING (ring, slice)
                WHERE ring = 'standard' AND r.state = 'sealed' AND f.status = 'complete'";
    let count: i64 = client.query_one(sql, &[]).await?.try_get(0)?;
    Ok(count.unsigned_abs())
}

async fn handled(client: &tokio_postgres::Client) -> Result<Vec<Handled>, Error> {
    let rows = client
        .query("SELECT attempt, identity, before, after FROM handled", &[])
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Handled {
                attempt: row.try_get(0)?,
                identity: row.try_get(1)?,
                before: row.try_get(2)?,
                after: row.try_get(3)?,
            })
        })
        .collect()
}

impl Config {
    /// Returns the settings of a run with the unchanged protocol.
    #[must_use]
    pub fn healthy(goal: Goal) -> Self {
        Self {
            clients: 12,
            outside: 0,
            complete_function: "idem_complete".to_owned(),
            retention: Duration::from_millis(400),
            claim_function: "idem_try_claim".to_owned(),
            work_before_claims: 16,
            work_between_claims: 8,
            conflicts_allowed: false,
            rotation: Rotation::WorkerAndCalls,
            kills: true,
            moves: true,
            imports: true,
            invalidates_filters: true,
            goal,
            deadline: super::deadline(),
            seed: idem_testkit::seed(),
        }
    }

    /// Returns the settings of a run with the unchanged protocol. About half of the clients work
    /// outside the transaction.
    #[must_use]
    pub fn outside(goal: Goal) -> Self {
        Self {
            clients: 5,
            outside: 7,
            work_before_claims: 6,
            work_between_claims: 2,
            ..Self::healthy(goal)
        }
    }

    /// Returns the settings of a run with completions that do not check the token of the lease.
    #[must_use]
    pub fn without_tokens() -> Self {
        Self {
            complete_function: broken::UNFENCED_COMPLETE.to_owned(),
            kills: false,
            moves: false,
            ..Self::outside(Goal::Covered {
                run_for: Duration::from_secs(8),
                least: Coverage {
                    rotations: 1,
                    ..Coverage::default()
                },
            })
        }
    }

    /// Returns the settings of a run that rotates without opening and fence. This variant fails
    /// when the ring rotates between two claims of a transaction.
    #[must_use]
    pub fn without_fence() -> Self {
        Self {
            retention: BROKEN_RETENTION,
            work_between_claims: 40,
            rotation: Rotation::AtOnce,
            kills: false,
            moves: false,
            deadline: Duration::from_secs(180),
            ..Self::healthy(Goal::Double)
        }
    }

    /// Returns the settings of a run with a claim that reads the state of the ring with the
    /// snapshot of its transaction. This variant fails when the ring rotates between the snapshot
    /// and the first claim. At that moment no other transaction with a claim may block the
    /// rotation.
    #[must_use]
    pub fn by_own_snapshot() -> Self {
        Self {
            claim_function: broken::STALE_CLAIM.to_owned(),
            conflicts_allowed: true,
            retention: BROKEN_RETENTION,
            work_before_claims: 80,
            work_between_claims: 2,
            rotation: Rotation::Calls,
            kills: false,
            moves: false,
            deadline: Duration::from_secs(180),
            ..Self::healthy(Goal::Double)
        }
    }

    /// Returns the settings of a run in which imported rows do not invalidate the filter of their
    /// slice.
    #[must_use]
    pub fn without_invalidation() -> Self {
        Self {
            invalidates_filters: false,
            kills: false,
            moves: false,
            deadline: Duration::from_secs(180),
            ..Self::healthy(Goal::Double)
        }
    }

    /// Starts the cluster that a run needs.
    ///
    /// # Errors
    /// Fails when the cluster does not start.
    pub fn cluster(&self, name: &str) -> Result<Cluster> {
        let install = idem_cluster::Install::from_env()?;
        let builder = Cluster::builder(&install)
            .name(name)
            .setting("shared_buffers", "64MB")
            .setting("deadlock_timeout", "50ms")
            .setting("idem.naptime", "100ms");
        let builder = match self.rotation {
            Rotation::WorkerAndCalls => builder,
            // No database has this name, so no worker starts.
            Rotation::Calls | Rotation::AtOnce => {
                builder.setting("idem.databases", "no_such_database")
            }
        };
        builder
            .start()
            .context("cannot start the cluster of a stress run")
    }
}
