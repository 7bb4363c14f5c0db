//! Tests of the worker: it rotates the rings without a request, restarts when it is killed, and
//! blocks no other session.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use idem_cluster::{Cluster, Shutdown};
use idem_testkit::ring::{SEALED, make_due, rotations, until_at_fence};
use idem_testkit::{DEADLINE, Session, until};

use super::{claim, cluster};

fn server(name: &str) -> Result<Cluster> {
    cluster(name)?.setting("idem.naptime", "100ms").start()
}

/// Makes the rings rotate several times a second. The first claim tells the launcher that the
/// database uses idem.
async fn rotate_fast(session: &Session) -> Result<()> {
    assert_eq!(claim(session, "first").await?, "t");
    for ring in ["short", "standard", "long"] {
        session
            .run(&format!(
                "SELECT idem_set_retention('{ring}', '200 milliseconds')"
            ))
            .await?;
    }
    Ok(())
}

/// Fails if the worker does not rotate the ring through all of its slices in time.
async fn ensure_keeps_rotating(session: &Session) -> Result<()> {
    let before = rotations(session, "standard").await?;
    until("the worker rotates the ring", async || {
        Ok(rotations(session, "standard").await? > before + SEALED as i64)
    })
    .await
}

async fn worker_pid(session: &Session, kind: &str) -> Result<Option<i32>> {
    let sql =
        format!("SELECT pid FROM pg_stat_activity WHERE backend_type = 'idem {kind}' LIMIT 1");
    let pid = session.text(&sql).await?;
    Ok(pid.parse().ok())
}

/// Makes a claim in a transaction that stays open, and waits until its ring waits for it at the
/// fence.
async fn pin_the_fence(holder: &Session, observer: &Session) -> Result<()> {
    holder.run("BEGIN").await?;
    assert_eq!(claim(holder, "held").await?, "t");
    until_at_fence(observer, "ring standard").await
}

/// The worker rotates, restarts after SIGTERM and SIGKILL, and does not delay a fast shutdown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_restarts_when_killed_and_delays_no_shutdown() -> Result<()> {
    let mut cluster = server("worker")?;
    let session = Session::in_database_with_idem(&cluster, "shop").await?;
    rotate_fast(&session).await?;
    ensure_keeps_rotating(&session).await?;
    assert_eq!(
        session
            .text("SELECT status FROM idem_health() WHERE check_name = 'worker'")
            .await?,
        "ok"
    );

    // Send SIGTERM to the launcher.
    let launcher = worker_pid(&session, "launcher")
        .await?
        .context("no launcher is running")?;
    session
        .run(&format!("SELECT pg_terminate_backend({launcher})"))
        .await?;
    until("another launcher is running", async || {
        Ok(worker_pid(&session, "launcher")
            .await?
            .is_some_and(|pid| pid != launcher))
    })
    .await?;
    ensure_keeps_rotating(&session).await?;

    // Send SIGTERM to a maintainer while the ring waits at the fence.
    let holder = Session::superuser(&cluster, "shop").await?;
    pin_the_fence(&holder, &session).await?;
    let terminate = "SELECT count(pg_terminate_backend(pid)) > 0 FROM pg_stat_activity
                      WHERE backend_type = 'idem maintainer'";
    until("a maintainer is terminated", async || {
        Ok(session.text(terminate).await? == "t")
    })
    .await?;
    holder.run("COMMIT").await?;
    ensure_keeps_rotating(&session).await?;

    // Send SIGKILL to the launcher.
    let launcher = worker_pid(&session, "launcher")
        .await?
        .context("no launcher is running")?;
    cluster.crash_backend(launcher)?;
    cluster.wait_until_ready(DEADLINE)?;
    let session = Session::superuser(&cluster, "shop").await?;
    ensure_keeps_rotating(&session).await?;

    // Stop the server with a fast shutdown while the ring waits at the fence.
    let holder = Session::superuser(&cluster, "shop").await?;
    pin_the_fence(&holder, &session).await?;
    let began = Instant::now();
    cluster.stop(Shutdown::Fast)?;
    ensure!(
        began.elapsed() < Duration::from_secs(2),
        "the shutdown took {:?}",
        began.elapsed()
    );
    cluster.start()?;
    let session = Session::superuser(&cluster, "shop").await?;
    ensure_keeps_rotating(&session).await?;
    let log = cluster.log()?;
    ensure!(
        !log.contains("PANIC") && !log.contains("ERROR:  idem"),
        "{log}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_blocks_no_drop_of_database_or_extension() -> Result<()> {
    let cluster = server("unblocked")?;
    let postgres = Session::superuser(&cluster, "postgres").await?;
    for round in 0..3 {
        let name = format!("shop_{round}");
        let session = Session::in_database_with_idem(&cluster, &name).await?;
        rotate_fast(&session).await?;
        ensure_keeps_rotating(&session).await?;

        // A pass can be running during each of these statements and must not block it.
        session
            .run(
                "SET lock_timeout = '2s'; CREATE FUNCTION mine() RETURNS int LANGUAGE sql RETURN 1",
            )
            .await?;
        session
            .run(
                "ALTER EXTENSION idem ADD FUNCTION mine(); \
                 ALTER EXTENSION idem DROP FUNCTION mine(); ALTER EXTENSION idem UPDATE",
            )
            .await?;
        session.run("DROP EXTENSION idem").await?;
        session.run("CREATE EXTENSION idem").await?;
        rotate_fast(&session).await?;
        ensure_keeps_rotating(&session).await?;

        // While the ring waits at the fence, another session executes the same maintenance steps.
        let holder = Session::superuser(&cluster, &name).await?;
        pin_the_fence(&holder, &session).await?;
        let caller = Session::superuser(&cluster, &name).await?;
        let pid = caller.pid().await?;
        let calling = tokio::spawn(async move { caller.run("CALL idem_maintain()").await });
        until("the caller waits at the fence, too", async || {
            let sql = format!(
                "SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} \
                 AND wait_event = 'Extension'"
            );
            Ok(session.text(&sql).await? == "1" || calling.is_finished())
        })
        .await?;
        holder.run("COMMIT").await?;
        calling.await??;
        // No rotation is due from now on, so the worker must be idle and must not block DROP
        // DATABASE.
        for ring in ["long", "standard", "short"] {
            session
                .run(&format!("SELECT idem_set_retention('{ring}', '1 hour')"))
                .await?;
        }
        drop((session, holder));
        postgres.run(&format!("DROP DATABASE {name}")).await?;
    }
    let left = "SELECT count(*) FROM pg_database WHERE datname LIKE 'shop%'";
    assert_eq!(postgres.text(left).await?, "0");
    Ok(())
}

/// I11. Goal: DROP EXTENSION and maintenance cannot deadlock. The DROP waits for a maintenance step
/// before it locks the first table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i11_drop_extension_locks_no_table_during_a_maintenance_step() -> Result<()> {
    let cluster = server("dropping")?;
    let session = Session::in_database_with_idem(&cluster, "shop").await?;
    rotate_fast(&session).await?;
    let (holder, dropper) = (
        Session::superuser(&cluster, "shop").await?,
        Session::superuser(&cluster, "shop").await?,
    );
    // Each step locks this table last, and waits for it without a limit.
    holder
        .run("BEGIN; LOCK TABLE idem.maintenance_error IN ACCESS EXCLUSIVE MODE")
        .await?;
    let waits = async |process: String| {
        let sql = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND {process}"
        );
        Ok(session.text(&sql).await? == "1")
    };
    until("a maintainer waits for the table", || {
        waits("backend_type = 'idem maintainer'".to_owned())
    })
    .await?;

    let pid = dropper.pid().await?;
    let dropping = tokio::spawn(async move { dropper.run("DROP EXTENSION idem").await });
    until("the DROP waits", || waits(format!("pid = {pid}"))).await?;
    let tables = format!(
        "SELECT count(*) FROM pg_locks JOIN pg_class c ON c.oid = relation
         WHERE pid = {pid} AND granted AND relnamespace = 'idem'::regnamespace"
    );
    assert_eq!(
        session.text(&tables).await?,
        "0",
        "the waiting DROP has locked tables"
    );
    holder.run("COMMIT").await?;
    dropping.await??;
    assert_eq!(
        session
            .text("SELECT to_regnamespace('idem') IS NULL")
            .await?,
        "t"
    );
    Ok(())
}

/// I11. Goal: the commands that need a database without sessions do not fail because of a
/// maintainer in a long step, as a scan of a large slice: the maintainer ends. Another one starts
/// later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i11_long_step_stops_no_command_on_the_database() -> Result<()> {
    let cluster = server("commands")?;
    let postgres = Session::superuser(&cluster, "postgres").await?;
    let session = Session::in_database_with_idem(&cluster, "shop").await?;
    assert_eq!(claim(&session, "first").await?, "t");
    session
        .run(
            "ALTER FUNCTION idem.keep_clock RENAME TO keep_clock_at_once;
             CREATE FUNCTION idem.keep_clock() RETURNS void LANGUAGE plpgsql AS
                 $$ BEGIN PERFORM pg_sleep(3600); END $$",
        )
        .await?;
    drop(session);
    let mut database = "shop";
    for command in [
        "CREATE DATABASE clone TEMPLATE shop",
        "ALTER DATABASE shop RENAME TO store",
        "DROP DATABASE store",
    ] {
        until("a maintainer is in a long step", async || {
            let steps = format!(
                "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idem maintainer'
                    AND datname = '{database}' AND wait_event = 'PgSleep'"
            );
            Ok(postgres.text(&steps).await? == "1")
        })
        .await?;
        postgres.run(command).await.context(command)?;
        if command.contains("RENAME") {
            database = "store";
        }
    }
    let left = "SELECT string_agg(datname, ' ') FROM pg_database
                 WHERE datname IN ('shop', 'store', 'clone')";
    assert_eq!(postgres.text(left).await?, "clone");
    Ok(())
}

/// I11. Goal: limits that an administrator sets for the sessions of a database do not end the
/// maintainer during a long step, and a role that is set for the database does not run the step.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i11_settings_of_a_database_end_no_maintainer() -> Result<()> {
    let cluster = server("limits")?;
    let session = Session::in_database_with_idem(&cluster, "shop").await?;
    assert_eq!(claim(&session, "first").await?, "t");
    session
        .run("CREATE ROLE weak; ALTER DATABASE shop SET role = 'weak'")
        .await?;
    let limits = "SELECT name FROM pg_settings WHERE name IN
                      ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout',
                       'idle_session_timeout', 'transaction_timeout')";
    for limit in session.text(limits).await?.lines() {
        session
            .run(&format!("ALTER DATABASE shop SET {limit} = '100ms'"))
            .await?;
    }
    // Each step reads this table last, so it runs for as long as the table is locked.
    let holder = "BEGIN; LOCK TABLE idem.maintenance_error IN ACCESS EXCLUSIVE MODE";
    session.run(holder).await?;
    let waits = "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
                  WHERE a.backend_type = 'idem maintainer' AND NOT l.granted
                    AND l.relation = 'idem.maintenance_error'::regclass
                    AND l.waitstart < clock_timestamp() - interval '1 second'";
    until("a step waits for longer than the limits", async || {
        Ok(session.text(waits).await? == "1")
    })
    .await?;
    session.run("COMMIT").await?;
    make_due(&session, "standard").await?;
    until("the ring rotates", async || {
        Ok(rotations(&session, "standard").await? == 1)
    })
    .await
}

/// I11. Goal: databases whose fence waits for an open claim delay no other database, however many
/// they are. Half of `max_worker_processes` (8) maintainers run at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i11_pinned_databases_delay_no_other_database() -> Result<()> {
    let cluster = server("pinned")?;
    let mut pinned = Vec::new();
    for n in 1..=6 {
        let observer = Session::in_database_with_idem(&cluster, &format!("pinned_{n}")).await?;
        rotate_fast(&observer).await?;
        ensure_keeps_rotating(&observer).await?;
        let holder = Session::superuser(&cluster, &format!("pinned_{n}")).await?;
        pin_the_fence(&holder, &observer).await?;
        pinned.push((holder, observer));
    }
    let session = Session::in_database_with_idem(&cluster, "free").await?;
    rotate_fast(&session).await?;
    ensure_keeps_rotating(&session).await?;
    for (holder, observer) in pinned {
        holder.run("COMMIT").await?;
        ensure_keeps_rotating(&observer).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_database_frees_its_counters() -> Result<()> {
    /// Databases that exist at the same time, and how often they are created. Together they are
    /// more than the places for counters.
    const DATABASES: i32 = 10;
    const TIMES: i32 = 7;
    let cluster = server("dropping")?;
    let postgres = Session::superuser(&cluster, "postgres").await?;
    drop(Session::in_database_with_idem(&cluster, "model").await?);
    postgres
        .run("ALTER DATABASE model ALLOW_CONNECTIONS false")
        .await?;
    for time in 1..=TIMES {
        let mut sessions = Vec::new();
        for n in 1..=DATABASES {
            let create = format!("CREATE DATABASE shop_{n} TEMPLATE model");
            postgres.run(&create).await?;
            let session = Session::superuser(&cluster, &format!("shop_{n}")).await?;
            assert_eq!(claim(&session, "m1").await?, "t");
            sessions.push(session);
        }
        for session in sessions {
            let counted = "SELECT value FROM idem.stats WHERE name = 'claimed'";
            until(
                &format!("a database of time {time} counts its own claims"),
                async || Ok(session.text(counted).await? == "1"),
            )
            .await?;
        }
        for n in 1..=DATABASES {
            postgres.run(&format!("DROP DATABASE shop_{n}")).await?;
        }
    }
    Ok(())
}

/// A worker that cannot get the lock of maintenance in a pass keeps the list of its fence. So a
/// transaction that began after the fence does not delay the rotation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i7_worker_keeps_its_fence_while_the_lock_is_held() -> Result<()> {
    let cluster = server("worker-fence")?;
    let session = Session::in_database_with_idem(&cluster, "shop").await?;
    let (holder, later, maintainer) = (
        Session::superuser(&cluster, "shop").await?,
        Session::superuser(&cluster, "shop").await?,
        Session::superuser(&cluster, "shop").await?,
    );
    assert_eq!(claim(&session, "first").await?, "t");
    holder.run("BEGIN").await?;
    assert_eq!(claim(&holder, "held").await?, "t");
    make_due(&session, "standard").await?;
    until("the ring is opening", async || {
        let opening = "SELECT phase = 'opening' FROM idem.ring WHERE name = 'standard'";
        Ok(session.text(opening).await? == "t")
    })
    .await?;
    let before = rotations(&session, "standard").await?;
    until_at_fence(&session, "ring standard").await?;

    later.run("BEGIN").await?;
    assert_eq!(claim(&later, "later").await?, "t");
    maintainer
        .run("BEGIN; LOCK TABLE idem.ring IN SHARE UPDATE EXCLUSIVE MODE")
        .await?;
    // Two different waits of the worker: the pass of the first wait has ended.
    let waits = "SELECT coalesce(max(l.waitstart)::text, '') FROM pg_locks l
                  WHERE l.relation = 'idem.ring'::regclass AND NOT l.granted";
    let mut seen = std::collections::BTreeSet::new();
    until("the worker waits twice for the lock", async || {
        let wait = session.text(waits).await?;
        if !wait.is_empty() {
            seen.insert(wait);
        }
        Ok(seen.len() >= 2)
    })
    .await?;
    maintainer.run("COMMIT").await?;
    holder.run("COMMIT").await?;
    until(
        "the ring rotates while the later claim is open",
        async || Ok(rotations(&session, "standard").await? > before),
    )
    .await?;
    later.run("COMMIT").await?;
    Ok(())
}

/// Keeps a transaction with a claim open at any time: the next one begins before the last one ends.
async fn write_without_a_pause(sessions: [Session; 2], is_over: Arc<AtomicBool>) -> Result<()> {
    let begin = async |session: &Session| {
        session.run("BEGIN").await?;
        session
            .run("SELECT idem_try_claim(gen_random_uuid(), 'orders')")
            .await
    };
    begin(&sessions[0]).await?;
    for (open, next) in [(0, 1), (1, 0)].iter().cycle() {
        begin(&sessions[*next]).await?;
        sessions[*open].run("COMMIT").await?;
        if is_over.load(Ordering::Relaxed) {
            return sessions[*next].run("COMMIT").await;
        }
    }
    Ok(())
}

/// The worker builds the filter of the slice that takes claims, although transactions write to the
/// slice at any time: it waits for those of its list.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_builds_a_filter_while_transactions_write() -> Result<()> {
    let cluster = cluster("worker-filters")?
        .setting("idem.naptime", "200ms")
        .start()?;
    let session = Session::in_database_with_idem(&cluster, "shop").await?;
    assert_eq!(claim(&session, "first").await?, "t");
    session
        .run("ALTER TABLE idem.inbox_standard_0 DISABLE TRIGGER note_load")
        .await?;
    let is_over = Arc::new(AtomicBool::new(false));
    let writers = [
        Session::superuser(&cluster, "shop").await?,
        Session::superuser(&cluster, "shop").await?,
    ];
    let writing = tokio::spawn(write_without_a_pause(writers, Arc::clone(&is_over)));
    for round in 0..2 {
        until("the worker has built the filter", async || {
            let status = "SELECT status FROM idem.filters WHERE ring = 'standard' AND slice = 0";
            Ok(session.text(status).await? == "complete")
        })
        .await?;
        // Another command invalidates the filter.
        session
            .run(&format!(
                "INSERT INTO idem.inbox_standard_0 (key, claimed_at, destination, id)
                     SELECT idem.key_of('row {round}'), now(), id, 'row {round}'
                       FROM idem.destination"
            ))
            .await?;
    }
    is_over.store(true, Ordering::Relaxed);
    writing.await?
}
