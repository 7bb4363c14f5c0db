//! I11: maintenance delays no claim, lease or producer, however many messages are pending.
//!
//! The environment variable `IDEM_TEST_BACKLOG` sets the number of pending messages, for a larger
//! backlog than the default.
//!
//! The tests fail for lock waits that are longer than `deadlock_timeout`, and a maintainer that
//! gets no processor time keeps its locks for longer. The tests are therefore a separate binary and
//! run one after the other, and the maintainer has a high priority where the system allows that. In
//! production it has no high priority.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use idem_cluster::{Cluster, Install};
use idem_stress::{deadline, duration};
use idem_testkit::{Database, Session};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

const CLIENTS: usize = 8;

/// A lock that the running test holds, so that the tests run one after the other.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Receives messages. Their payloads are random texts of less than 2 KB, which are neither
/// compressed nor moved out of line.
const RECEIVE: &str = "SELECT count(idem_receive('b' || n, 'backlog',
                           to_jsonb((SELECT string_agg(md5(n || '-' || x), '')
                                       FROM generate_series(1, 55) x))))
                         FROM generate_series($1::int8, $2::int8) n";

/// The key up to which the payloads of the oldest slice have been copied.
const MOVED: &str = "SELECT moved_key FROM idem.payload_rotation";

/// Replaces the check of the size: from 64 KB on, the current table of pending messages is large
/// enough for a rotation.
const ALWAYS_LARGE: &str = "CREATE OR REPLACE FUNCTION idem.pending_is_large(
        rotation idem.pending_rotation) RETURNS boolean
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
    RETURN pg_relation_size(idem.pending_table((rotation).current)) > 65536";

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| {
        text.parse().expect("the variable is not a number")
    })
}

/// The counts of a run.
#[derive(Debug, Default)]
struct Done {
    operations: u64,
    passes: u64,
    /// The number of times that the maintainer copied the live pending messages.
    rotations: u64,
    /// The number of times that the maintainer copied payloads.
    moves: u64,
    payload_rotations: u64,
}

struct Run<'r> {
    name: &'r str,
    /// The number of pending messages at the start.
    backlog: u64,
    /// The SQL that changes the database before the clients begin.
    change: Option<&'r str>,
    run_for: Duration,
    /// Returns true when the run has reached the counts that make it meaningful.
    is_covered: fn(&Done) -> bool,
}

/// Executes a run. Returns its counts, and the lock waits in the server log that name the
/// maintainer as the holder.
async fn run(run: Run<'_>) -> Result<(Done, Vec<String>)> {
    let Run { name, backlog, .. } = run;
    let _alone = ALONE.lock().await;
    let cluster = Cluster::builder(&Install::from_env()?)
        .name(name)
        .setting("deadlock_timeout", "100ms")
        .setting("log_lock_waits", "on")
        // The test runs the maintenance itself, so it knows the process id of the maintainer.
        .setting("idem.databases", "none")
        .start()?;
    let db = Arc::new(Database::with_idem_in(Arc::new(cluster), name).await?);
    let filler = db.connect().await?;
    filler.run("SET statement_timeout = 0").await?;
    for from in (1..=backlog).step_by(10_000) {
        let to = backlog.min(from + 9_999);
        filler
            .query(RECEIVE, &[&i64::try_from(from)?, &i64::try_from(to)?])
            .await?;
    }
    if let Some(sql) = run.change {
        filler.run(sql).await?;
    }

    let open = Arc::new(AtomicBool::new(true));
    let operations = Arc::new(AtomicU64::new(0));
    let maintainer = db.connect().await?;
    let pid = maintainer.pid().await?;
    maintainer.prioritize().await?;
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let (session, open, operations) = (
            db.connect().await?,
            Arc::clone(&open),
            Arc::clone(&operations),
        );
        clients.spawn(run_client(session, number, open, operations));
    }
    let mut done = Done::default();
    let began = Instant::now();
    while began.elapsed() < run.run_for
        || (!(run.is_covered)(&done) && began.elapsed() < deadline())
    {
        maintainer.run("CALL idem_maintain()").await?;
        done.passes += 1;
        // Rotate more often than the sizes require.
        let rotated = maintainer.text("SELECT idem.rotate_pending()").await?;
        done.rotations += u64::from(rotated == "t");
        let before = maintainer.text(MOVED).await?;
        maintainer
            .run("SELECT idem.rotate_payloads(65536, '100 milliseconds')")
            .await?;
        let after = maintainer.text(MOVED).await?;
        done.moves += u64::from(after != before && after != "NULL");
        let rotations = maintainer
            .text("SELECT rotations FROM idem.payload_rotation")
            .await?;
        done.payload_rotations = rotations.parse()?;
        done.operations = operations.load(Ordering::Relaxed);
    }
    open.store(false, Ordering::Relaxed);
    clients
        .join_all()
        .await
        .into_iter()
        .collect::<Result<()>>()?;
    let waits = waits_for(&db.cluster().log()?, pid);
    println!("{name}: {:.0?}, {done:?}", began.elapsed());
    Ok((done, waits))
}

/// Claims, leases, receives and completes messages until the run is over. Every error, also a
/// deadlock, ends the client and fails the test.
async fn run_client(
    session: Session,
    number: usize,
    open: Arc<AtomicBool>,
    operations: Arc<AtomicU64>,
) -> Result<()> {
    let mut n = 0_u64;
    while open.load(Ordering::Relaxed) {
        n += 1;
        let id = format!("c{number}-{n}");
        session
            .run(&format!(
                "BEGIN; SELECT idem_try_claim('{id}', 'orders'); COMMIT;
                 SELECT idem_receive('r{id}', 'backlog', to_jsonb(repeat('x', 500)),
                 deliver_after => now() + (random() < 0.05)::int * interval '1 hour')"
            ))
            .await
            .context("claim and receive")?;
        let acquire = format!("SELECT token FROM idem_acquire('l{id}', 'orders')");
        let token = session.text(&acquire).await?;
        session
            .run(&format!("SELECT idem_complete('l{id}', 'orders', {token})"))
            .await
            .context("complete")?;
        let done = session
            .text("SELECT count(idem_complete(id, 'backlog', token)) FROM idem_next('backlog', 5)")
            .await
            .context("next")?;
        operations.fetch_add(4 + done.parse::<u64>()?, Ordering::Relaxed);
    }
    Ok(())
}

/// Returns the lock waits of the server log that name this process as a holder.
fn waits_for(log: &str, holder: i32) -> Vec<String> {
    let holder = holder.to_string();
    let lines: Vec<&str> = log.lines().collect();
    let names_holder = |detail: &str| {
        detail
            .split_once("holding the lock: ")
            .and_then(|(_, rest)| rest.split_once(". Wait queue"))
            .is_some_and(|(pids, _)| pids.split(", ").any(|pid| pid == holder))
    };
    lines
        .windows(2)
        .filter(|pair| pair[0].contains("still waiting for") && names_holder(pair[1]))
        .map(|pair| pair.join(" / "))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i11_no_lock_wait_names_the_maintainer() -> Result<()> {
    let is_covered =
        |done: &Done| done.operations > 500 && done.passes > 10 && done.payload_rotations >= 1;
    let (done, waits) = run(Run {
        name: "backlog",
        backlog: number("IDEM_TEST_BACKLOG", 22_000),
        change: None,
        run_for: duration(),
        is_covered,
    })
    .await?;
    assert!(waits.is_empty(), "{waits:#?}");
    assert!(is_covered(&done), "{done:?}");
    Ok(())
}

/// I11: with few pending messages, rotations copy the pending messages repeatedly and move payloads
/// of waiting messages from slice to slice. No client waits for a lock of the maintainer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i11_rotation_during_claims_delays_no_claim() -> Result<()> {
    let is_covered = |done: &Done| {
        done.operations > 500
            && done.rotations >= 2
            && done.moves >= 2
            && done.payload_rotations >= 4
    };
    let (done, waits) = run(Run {
        name: "backlog_small",
        backlog: 1_200,
        change: Some(ALWAYS_LARGE),
        run_for: duration(),
        is_covered,
    })
    .await?;
    assert!(waits.is_empty(), "{waits:#?}");
    assert!(is_covered(&done), "{done:?}");
    Ok(())
}

/// The checker reports the lock waits that a maintainer causes when it keeps tables locked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i11_checker_catches_a_maintainer_that_holds_a_lock() -> Result<()> {
    let broken =
        "CREATE OR REPLACE FUNCTION idem.rotate_pending() RETURNS boolean LANGUAGE plpgsql AS $$
        BEGIN
            LOCK TABLE idem.pending_0, idem.pending_1 IN ACCESS EXCLUSIVE MODE;
            PERFORM pg_sleep(0.3);
            RETURN false;
        END $$";
    let (done, waits) = run(Run {
        name: "backlog_broken",
        backlog: 1_000,
        change: Some(broken),
        run_for: Duration::from_secs(3),
        is_covered: |_| true,
    })
    .await?;
    assert!(!waits.is_empty(), "{done:?}");
    Ok(())
}
