//! The worker rotates by itself, comes back when it is killed, and stands in nobody's way.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use idem_cluster::{Cluster, Shutdown};
use idem_tests::harness::{DEADLINE, Session, until};

use super::{claim, cluster, connect, turns, with_idem};

fn server(name: &str) -> Result<Cluster> {
    cluster(name)?.setting("idem.naptime", "100ms").start()
}

/// Rings that turn several times a second, of a database that the launcher knows: it learns of it
/// with the first claim.
async fn turn_fast(session: &Session) -> Result<()> {
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

async fn keeps_turning(session: &Session) -> Result<()> {
    let before = turns(session, "standard").await?;
    until("the worker turns the ring", async || {
        Ok(turns(session, "standard").await? >= before + 3)
    })
    .await
}

async fn worker_pid(session: &Session, kind: &str) -> Result<Option<i32>> {
    let sql =
        format!("SELECT pid FROM pg_stat_activity WHERE backend_type = 'idem {kind}' LIMIT 1");
    let pid = session.text(&sql).await?;
    Ok(pid.parse().ok())
}

/// A claim that keeps its transaction open, and a worker that waits for it at the fence.
async fn pin_the_fence(holder: &Session, observer: &Session) -> Result<()> {
    holder.run("BEGIN").await?;
    assert_eq!(claim(holder, "held").await?, "t");
    until("a maintainer waits at the fence", async || {
        let opening = observer
            .text("SELECT opening OR emptying FROM idem.ring WHERE name = 'standard'")
            .await?;
        Ok(opening == "t" && worker_pid(observer, "maintainer").await?.is_some())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_worker_rotates_comes_back_when_killed_and_lets_the_server_stop_at_once() -> Result<()>
{
    let mut cluster = server("worker")?;
    let session = with_idem(&cluster, "shop").await?;
    turn_fast(&session).await?;
    keeps_turning(&session).await?;
    assert_eq!(
        session
            .text("SELECT status FROM idem_health() WHERE check_name = 'worker'")
            .await?,
        "ok"
    );

    // SIGTERM
    let launcher = worker_pid(&session, "launcher")
        .await?
        .context("a launcher")?;
    session
        .run(&format!("SELECT pg_terminate_backend({launcher})"))
        .await?;
    until("another launcher", async || {
        Ok(worker_pid(&session, "launcher")
            .await?
            .is_some_and(|pid| pid != launcher))
    })
    .await?;
    keeps_turning(&session).await?;

    // SIGTERM at the fence
    let holder = connect(&cluster, "shop").await?;
    pin_the_fence(&holder, &session).await?;
    let maintainer = worker_pid(&session, "maintainer")
        .await?
        .context("a maintainer")?;
    session
        .run(&format!("SELECT pg_terminate_backend({maintainer})"))
        .await?;
    until("another maintainer", async || {
        Ok(worker_pid(&session, "maintainer")
            .await?
            .is_some_and(|pid| pid != maintainer))
    })
    .await?;
    holder.run("COMMIT").await?;
    keeps_turning(&session).await?;

    // SIGKILL
    let launcher = worker_pid(&session, "launcher")
        .await?
        .context("a launcher")?;
    cluster.crash_backend(launcher)?;
    cluster.wait_until_ready(DEADLINE)?;
    let session = connect(&cluster, "shop").await?;
    keeps_turning(&session).await?;

    // A fast shutdown, with a maintainer that waits at the fence.
    let holder = connect(&cluster, "shop").await?;
    pin_the_fence(&holder, &session).await?;
    let began = Instant::now();
    cluster.stop(Shutdown::Fast)?;
    ensure!(
        began.elapsed() < Duration::from_secs(2),
        "the shutdown took {:?}",
        began.elapsed()
    );
    cluster.start()?;
    let session = connect(&cluster, "shop").await?;
    keeps_turning(&session).await?;
    let log = cluster.log()?;
    ensure!(
        !log.contains("PANIC") && !log.contains("ERROR:  idem"),
        "{log}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_worker_blocks_no_drop_of_the_database_or_the_extension() -> Result<()> {
    let cluster = server("unblocked")?;
    let postgres = connect(&cluster, "postgres").await?;
    for round in 0..3 {
        let name = format!("shop_{round}");
        let session = with_idem(&cluster, &name).await?;
        turn_fast(&session).await?;
        keeps_turning(&session).await?;

        // While a pass may be running at any time.
        session
            .run(
                "SET lock_timeout = '2s'; CREATE FUNCTION mine() RETURNS int LANGUAGE sql RETURN 1",
            )
            .await?;
        session
            .run("ALTER EXTENSION idem ADD FUNCTION mine(); ALTER EXTENSION idem DROP FUNCTION mine(); ALTER EXTENSION idem UPDATE")
            .await?;
        session.run("DROP EXTENSION idem").await?;
        session.run("CREATE EXTENSION idem").await?;
        turn_fast(&session).await?;
        keeps_turning(&session).await?;

        // The worker waits at the fence, and somebody else takes the steps it waits for.
        let holder = connect(&cluster, &name).await?;
        pin_the_fence(&holder, &session).await?;
        let caller = connect(&cluster, &name).await?;
        let pid = caller.pid().await?;
        let calling = tokio::spawn(async move { caller.run("CALL idem_maintain()").await });
        until("the caller is at the fence too", async || {
            let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'Extension'");
            Ok(session.text(&sql).await? == "1" || calling.is_finished())
        })
        .await?;
        holder.run("COMMIT").await?;
        calling.await??;
        // The rings rest from now on, and so must the worker.
        for ring in ["long", "standard", "short"] {
            session
                .run(&format!("SELECT idem_set_retention('{ring}', '1 hour')"))
                .await?;
        }
        drop((session, holder));
        postgres.run(&format!("DROP DATABASE {name}")).await?;
    }
    Ok(())
}

/// Goal: DROP EXTENSION and the maintenance cannot deadlock. The DROP waits for a step of the
/// maintenance before it locks the first table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i11_drop_extension_locks_no_table_during_a_maintenance_step() -> Result<()> {
    let cluster = server("dropping")?;
    let session = with_idem(&cluster, "shop").await?;
    turn_fast(&session).await?;
    let (holder, dropper) = (
        connect(&cluster, "shop").await?,
        connect(&cluster, "shop").await?,
    );
    // Each step ends with this table, and waits for it without a limit.
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
    assert_eq!(session.text(&tables).await?, "0", "tables are locked");
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn databases_whose_fence_is_pinned_do_not_hold_up_the_others() -> Result<()> {
    let cluster = server("pinned")?;
    let mut pinned = Vec::new();
    for n in 1..=3 {
        let observer = with_idem(&cluster, &format!("pinned_{n}")).await?;
        turn_fast(&observer).await?;
        keeps_turning(&observer).await?;
        let holder = connect(&cluster, &format!("pinned_{n}")).await?;
        pin_the_fence(&holder, &observer).await?;
        pinned.push((holder, observer));
    }
    let session = with_idem(&cluster, "free").await?;
    turn_fast(&session).await?;
    keeps_turning(&session).await?;
    for (holder, observer) in pinned {
        holder.run("COMMIT").await?;
        keeps_turning(&observer).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_database_gives_its_counters_back() -> Result<()> {
    /// More than there are places for.
    const DATABASES: i32 = 70;
    let cluster = server("dropping")?;
    let postgres = connect(&cluster, "postgres").await?;
    drop(with_idem(&cluster, "model").await?);
    postgres
        .run("ALTER DATABASE model ALLOW_CONNECTIONS false")
        .await?;
    for n in 1..=DATABASES {
        let name = format!("shop_{n}");
        postgres
            .run(&format!("CREATE DATABASE {name} TEMPLATE model"))
            .await?;
        let session = connect(&cluster, &name).await?;
        assert_eq!(claim(&session, "m1").await?, "t");
        let counted = "SELECT value FROM idem.stats WHERE name = 'claimed'";
        until(&format!("database {n} counts its own claims"), async || {
            Ok(session.text(counted).await? == "1")
        })
        .await?;
        drop(session);
        postgres.run(&format!("DROP DATABASE {name}")).await?;
    }
    Ok(())
}
