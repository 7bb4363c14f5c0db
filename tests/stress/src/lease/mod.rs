//! Leases, claims and received messages of the same identities under stress, while the tables of
//! pending messages rotate and sessions are killed. A checker reports whether a client handled an
//! identity during a valid lease of another client, and whether a message was lost.
//!
//! Each transaction writes the data that the checker needs about this transaction. The times are
//! the server's clock.

pub mod checker;
mod client;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use idem_cluster::{Cluster, Install};
use tokio::task::JoinSet;
use tokio_postgres::Client;

use super::line::{connect, expect_kill};
use checker::Verdict;

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// The number of clients.
    pub clients: u64,
    /// The function that acquires a lease: `idem_acquire` or a broken variant.
    pub acquire_function: &'static str,
    /// The duration of the run.
    pub run_for: Duration,
    /// Whether the run ends as soon as a client has handled an identity during a valid lease of
    /// another client.
    pub until_two_win: bool,
    /// The seed of the random decisions of the clients.
    pub seed: u64,
}

impl Config {
    /// Returns the settings of a run with the unchanged protocol.
    #[must_use]
    pub fn healthy() -> Self {
        Self {
            clients: 8,
            acquire_function: "idem_acquire",
            run_for: super::duration(),
            until_two_win: false,
            seed: idem_testkit::seed(),
        }
    }

    /// Returns the settings of a run with a broken variant. This variant looks for a claim in the
    /// inbox before it writes the lease, but it does not look again after the write. So it misses a
    /// claim in progress.
    #[must_use]
    pub fn looks_before_only() -> Self {
        Self {
            acquire_function: "acquire_without_second_look",
            run_for: Duration::from_secs(120),
            until_two_win: true,
            ..Self::healthy()
        }
    }
}

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    pub verdict: Verdict,
    /// Rotations of the pending messages.
    pub rotations: u64,
    /// Sessions that were terminated.
    pub terminated: u64,
}

/// A run continues until the pending messages have rotated this often.
pub const MIN_ROTATIONS: u64 = 20;
/// A run continues until this number of sessions was terminated.
pub const MIN_TERMINATED: u64 = 10;

/// The state that all tasks of a run share.
struct Arena {
    config: Config,
    url: String,
    open: AtomicBool,
    /// The number of operations that the clients have begun. The window of identities moves with
    /// this number.
    begun: AtomicI64,
    rotations: AtomicU64,
    terminated: AtomicU64,
}

impl Arena {
    fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// Returns whether the tables have rotated, and sessions were terminated, often enough for a
    /// meaningful run.
    fn is_covered(&self) -> bool {
        let rotations = self.rotations.load(Ordering::Relaxed);
        let terminated = self.terminated.load(Ordering::Relaxed);
        rotations >= MIN_ROTATIONS && terminated >= MIN_TERMINATED
    }
}

const SCHEMA: &str = r"
CREATE EXTENSION idem;
SELECT idem_try_claim('warm', 'race');
CREATE TABLE leased (
    identity bigint, token bigint, asked timestamptz, told timestamptz, lease interval
);
CREATE TABLE released (identity bigint, token bigint, asked timestamptz);
CREATE TABLE handled (identity bigint, token bigint, told timestamptz);
CREATE TABLE received (identity bigint);
-- Rotates at every opportunity.
CREATE OR REPLACE FUNCTION idem.pending_is_large(rotation idem.pending_rotation) RETURNS boolean
LANGUAGE sql
    RETURN pg_relation_size(idem.pending_table((rotation).current)) > 0;
CREATE FUNCTION acquire_without_second_look(
    id text, destination text, lease interval, OUT outcome idem_lease_outcome, OUT token bigint
)
LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF idem_is_claimed(id, destination) THEN
        outcome := 'duplicate';
        RETURN;
    END IF;
    token := nextval('idem.lease_token_seq');
    IF idem.enter_pending() = 0 THEN
        INSERT INTO idem.pending_0
               (seq, token, due_at, received_at, key, destination, attempt, state, stops_claims,
                id)
        SELECT nextval('idem.pending_seq'), acquire_without_second_look.token,
               clock_timestamp() + lease, now(), idem.key_of(acquire_without_second_look.id),
               idem.find_destination(acquire_without_second_look.destination), 1, 'l',
               true, acquire_without_second_look.id
        ON CONFLICT DO NOTHING;
    ELSE
        INSERT INTO idem.pending_1
               (seq, token, due_at, received_at, key, destination, attempt, state, stops_claims,
                id)
        SELECT nextval('idem.pending_seq'), acquire_without_second_look.token,
               clock_timestamp() + lease, now(), idem.key_of(acquire_without_second_look.id),
               idem.find_destination(acquire_without_second_look.destination), 1, 'l',
               true, acquire_without_second_look.id
        ON CONFLICT DO NOTHING;
    END IF;
    outcome := CASE WHEN FOUND THEN 'acquired' ELSE 'in_progress' END;
END
$$;
";

/// Runs the clients in a new cluster and checks their results.
///
/// # Errors
/// Fails when the server returns an error that no kill explains, or when the broken variant is not
/// caught in time.
pub async fn run(name: &str, config: Config) -> Result<Outcome> {
    let cluster = Cluster::builder(&Install::from_env()?)
        .name(name)
        .setting("shared_buffers", "64MB")
        .setting("deadlock_timeout", "50ms")
        .setting("idem.naptime", "100ms")
        .start()?;
    connect(&cluster.connection_string("postgres"))
        .await?
        .batch_execute("CREATE DATABASE race")
        .await?;
    let arena = Arc::new(Arena {
        url: cluster.connection_string("race"),
        open: AtomicBool::new(true),
        begun: AtomicI64::new(0),
        rotations: AtomicU64::new(0),
        terminated: AtomicU64::new(0),
        config,
    });
    let observer = connect(&arena.url).await?;
    observer.batch_execute(SCHEMA).await?;

    let mut tasks = JoinSet::new();
    for number in 0..arena.config.clients {
        tasks.spawn(client::work(Arc::clone(&arena), number));
    }
    tasks.spawn(rotate(Arc::clone(&arena)));
    if !arena.config.until_two_win {
        tasks.spawn(kill(Arc::clone(&arena)));
    }
    let goal = reach_goal(&arena, &observer).await;
    arena.open.store(false, Ordering::Relaxed);
    tasks.join_all().await.into_iter().collect::<Result<()>>()?;
    goal?;
    Ok(Outcome {
        verdict: checker::check(&observer).await?,
        rotations: arena.rotations.load(Ordering::Relaxed),
        terminated: arena.terminated.load(Ordering::Relaxed),
    })
}

async fn reach_goal(arena: &Arena, observer: &Client) -> Result<()> {
    let began = Instant::now();
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        if arena.config.until_two_win && checker::two_have_won(observer).await? > 0 {
            return Ok(());
        }
        if arena.config.until_two_win {
            ensure!(
                began.elapsed() < arena.config.run_for,
                "the broken variant was not caught within {:?}",
                arena.config.run_for
            );
            continue;
        }
        if began.elapsed() >= super::deadline() {
            return Ok(());
        }
        // The run also waits for enough events, because a busy machine needs more time for them.
        if began.elapsed() >= arena.config.run_for
            && arena.is_covered()
            && checker::check(observer).await?.has_enough_events()
        {
            return Ok(());
        }
    }
}

async fn rotate(arena: Arc<Arena>) -> Result<()> {
    let client = connect(&arena.url).await?;
    while arena.is_open() {
        tokio::time::sleep(Duration::from_millis(30)).await;
        let rotated: bool = client
            .query_one("SELECT idem.rotate_pending()", &[])
            .await?
            .get(0);
        arena
            .rotations
            .fetch_add(u64::from(rotated), Ordering::Relaxed);
    }
    Ok(())
}

async fn kill(arena: Arc<Arena>) -> Result<()> {
    let client = connect(&arena.url).await?;
    while arena.is_open() {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let killed = client
            .execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                  WHERE application_name = 'racer' ORDER BY random() LIMIT 1",
                &[],
            )
            .await
            .or_else(|error| expect_kill(error).map(|()| 0))?;
        arena.terminated.fetch_add(killed, Ordering::Relaxed);
    }
    Ok(())
}
