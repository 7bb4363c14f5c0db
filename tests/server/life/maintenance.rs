//! Tests of I11: the steps of maintenance are isolated. A step that fails does not stop another
//! step, is logged once, and is reported by health.

use anyhow::{Result, ensure};
use idem_cluster::Cluster;
use idem_testkit::Session;
use idem_testkit::ring::{make_due, rotations};
use idem_testkit::until;

use super::{claim, cluster};

/// Starts a server without a worker, so the test decides when a pass runs.
fn server(name: &str) -> Result<Cluster> {
    cluster(name)?.setting("idem.databases", "none").start()
}

/// A maintenance step, and the statements that break and repair it.
struct Broken {
    step: &'static str,
    fails_with: &'static str,
    break_it: &'static str,
    mend_it: &'static str,
}

const BROKEN: [Broken; 4] = [
    // A trigger that an administrator has created and that fails.
    Broken {
        step: "ring short",
        fails_with: "not today",
        break_it: "CREATE FUNCTION public.not_today() RETURNS trigger LANGUAGE plpgsql AS $$
                   BEGIN RAISE 'not today'; END $$;
                   CREATE TRIGGER not_today BEFORE UPDATE ON idem.ring FOR EACH ROW
                       WHEN (NEW.name = 'short' AND NEW.phase = 'opening')
                       EXECUTE FUNCTION public.not_today()",
        mend_it: "DROP TRIGGER not_today ON idem.ring; DROP FUNCTION public.not_today()",
    },
    Broken {
        step: "pending messages",
        fails_with: "function idem.rotate_pending() does not exist",
        break_it: "ALTER FUNCTION idem.rotate_pending() RENAME TO rotated_pending",
        mend_it: "ALTER FUNCTION idem.rotated_pending() RENAME TO rotate_pending",
    },
    Broken {
        step: "payloads",
        fails_with: "function idem.rotate_payloads() does not exist",
        break_it: "ALTER FUNCTION idem.rotate_payloads RENAME TO rotated_payloads",
        mend_it: "ALTER FUNCTION idem.rotated_payloads RENAME TO rotate_payloads",
    },
    Broken {
        step: "progress",
        fails_with: "function idem.rotate_progress() does not exist",
        break_it: "ALTER FUNCTION idem.rotate_progress() RENAME TO lost_progress",
        mend_it: "ALTER FUNCTION idem.lost_progress() RENAME TO rotate_progress",
    },
];

const HEALTH: &str = "SELECT status, detail FROM idem_health() WHERE check_name = 'maintenance'";

/// Returns the number of lines of the server log that report the failure.
fn logged(cluster: &Cluster, broken: &Broken) -> Result<usize> {
    let log = cluster.log()?;
    Ok(log
        .lines()
        .filter(|line| {
            line.contains(broken.fails_with)
                && (line.contains("ERROR:") || line.contains("WARNING:"))
        })
        .count())
}

/// I11. Goal: logical replication of the whole database stops no rotation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i11_publication_for_all_tables_stops_no_step() -> Result<()> {
    let cluster = cluster("publication")?
        .setting("idem.databases", "none")
        .setting("wal_level", "logical")
        .start()?;
    let session = Session::in_database_with_idem(&cluster, "shop").await?;
    session
        .run("CREATE PUBLICATION everything FOR ALL TABLES")
        .await?;
    session
        .run(
            r#"SELECT idem_try_record('m1', 'orders', '[{"topic": "t", "payload": 1}]');
               SELECT idem_receive('m2', 'orders', '{"n": 2}'::jsonb);
               SELECT idem_configure('orders', '30 days');
               SELECT idem_acquire('m3', 'orders')"#,
        )
        .await?;
    let batch = session
        .text("SELECT token FROM idem_relay_next('default')")
        .await?;
    session
        .run(&format!("SELECT idem_relay_ack('default', 0, {batch})"))
        .await?;
    let token = session
        .text("SELECT token FROM idem_next('orders')")
        .await?;
    session
        .run(&format!("SELECT idem_complete('m2', 'orders', {token})"))
        .await?;
    // Make the table of relay progress large enough for a rotation.
    session
        .run(
            "INSERT INTO idem.progress_0 (pos, relay, partition, floor_from, snapshot_from)
             SELECT -n, 1, 0, 0, '1:1:' FROM generate_series(1, 100000) n;
             SELECT idem_finish_restore()",
        )
        .await?;
    for ring in ["short", "standard", "long"] {
        make_due(&session, ring).await?;
    }
    session.run("CALL idem_maintain()").await?;
    for ring in ["short", "standard", "long"] {
        assert_eq!(rotations(&session, ring).await?, 1, "{ring}");
    }
    assert_eq!(
        session
            .text("SELECT current FROM idem.progress_rotation")
            .await?,
        "1"
    );
    assert_eq!(
        session.text(HEALTH).await?,
        "ok|every step of the last pass succeeded",
        "no step failed"
    );
    Ok(())
}

/// I4. Goal: with logical replication of the whole database, PostgreSQL 18 can update and delete a
/// parked effect. PostgreSQL 18 returns an error when the primary key contains a generated column.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i4_effects_are_parked_with_publication_for_all_tables() -> Result<()> {
    let cluster = cluster("publish_parked")?
        .setting("idem.databases", "none")
        .setting("wal_level", "logical")
        .start()?;
    let session = Session::in_database_with_idem(&cluster, "shop").await?;
    session
        .run("CREATE PUBLICATION everything FOR ALL TABLES")
        .await?;
    session
        .run(r#"SELECT idem_try_record('m1', 'orders', '[{"topic": "t", "payload": 1}]')"#)
        .await?;
    let next = "SELECT token, message_id FROM idem_relay_next('default')";
    let batch = session.text(next).await?;
    let (token, message) = batch.split_once('|').unwrap_or_default();
    session
        .run(&format!(
            "SELECT idem_relay_park('default', 0, {token}, '{message}', 'no route'); \
             SELECT idem_relay_ack('default', 0, {token})"
        ))
        .await?;
    let unparked = session
        .text(&format!("SELECT idem_relay_unpark('default', '{message}')"))
        .await?;
    assert_eq!(unparked, "t");
    let again = session.text(next).await?;
    let (token, delayed) = again.split_once('|').unwrap_or_default();
    assert_eq!(delayed, message);
    let token = session
        .text(&format!("SELECT idem_relay_extend('default', 0, {token})"))
        .await?;
    session
        .run(&format!("SELECT idem_relay_ack('default', 0, {token})"))
        .await?;
    let left = session
        .text("SELECT count(*), (SELECT count(*) FROM idem.parked_effect) FROM idem.delayed")
        .await?;
    assert_eq!(left, "0|0");
    Ok(())
}

/// I11. Goal: every table has a replica identity. Without one, updates and deletes of the table
/// would fail for users that publish all tables.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i11_every_table_has_a_replica_identity() -> Result<()> {
    let cluster = server("identity")?;
    let session = Session::in_database_with_idem(&cluster, "shop").await?;
    let without = session
        .text(
            "SELECT c.oid::regclass FROM pg_class c
              WHERE c.relnamespace = 'idem'::regnamespace AND c.relkind IN ('r', 'p')
                AND (c.relreplident = 'n'
                     OR (c.relreplident = 'd'
                     AND NOT EXISTS (SELECT 1 FROM pg_index i WHERE i.indrelid = c.oid
                     AND i.indisprimary)))
              ORDER BY 1",
        )
        .await?;
    assert_eq!(
        without, "",
        "tables without a primary key or REPLICA IDENTITY"
    );
    let generated = session
        .text(
            "SELECT i.indrelid::regclass, a.attname
               FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid
               AND a.attnum = ANY (i.indkey)
              WHERE i.indisprimary AND a.attgenerated <> ''
              AND i.indrelid::regclass::text LIKE 'idem.%' ORDER BY 1",
        )
        .await?;
    assert_eq!(
        generated, "",
        "primary keys that contain a generated column"
    );
    Ok(())
}

/// I11. Goal: CALL idem_maintain() continues after a step that fails. It raises a warning each
/// time, and the log contains the error once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i11_idem_maintain_continues_after_a_failing_step() -> Result<()> {
    let cluster = server("failing")?;
    for (n, broken) in BROKEN.iter().enumerate() {
        let session = Session::in_database_with_idem(&cluster, &format!("shop_{n}")).await?;
        session.run(broken.break_it).await?;
        for pass in 1..=3 {
            for ring in ["short", "standard", "long"] {
                make_due(&session, ring).await?;
            }
            let _ = session.notices();
            session.run("CALL idem_maintain()").await?;
            let notices = session.notices();
            let warnings: Vec<_> = notices
                .iter()
                .filter(|notice| notice.severity == "WARNING")
                .collect();
            assert_eq!(warnings.len(), 1, "{}: {notices:?}", broken.step);
            ensure!(
                warnings[0].message.contains(broken.step)
                    && warnings[0].message.contains(broken.fails_with),
                "{warnings:?}"
            );
            for ring in ["standard", "long"] {
                assert_eq!(
                    rotations(&session, ring).await?,
                    pass,
                    "{ring} while {} fails",
                    broken.step
                );
            }
        }
        assert_eq!(
            logged(&cluster, broken)?,
            1,
            "{} is logged once",
            broken.step
        );
        let health = session.text(HEALTH).await?;
        ensure!(
            health.starts_with("critical|")
                && health.contains(broken.step)
                && health.contains(broken.fails_with),
            "{health}"
        );
        ensure!(
            health.contains("since 20"),
            "the time of the first failure: {health}"
        );

        session.run(broken.mend_it).await?;
        session.run("CALL idem_maintain()").await?;
        assert_eq!(
            session.text(HEALTH).await?,
            "ok|every step of the last pass succeeded"
        );
        assert_eq!(
            rotations(&session, "short").await?,
            if n == 0 { 1 } else { 3 }
        );
    }
    Ok(())
}

/// I11. Goal: the worker continues after a failing step, too, and an error that changes is logged
/// again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i11_worker_continues_after_a_failing_step() -> Result<()> {
    let cluster = cluster("failing-worker")?
        .setting("idem.naptime", "100ms")
        .start()?;
    for (n, broken) in BROKEN.iter().enumerate() {
        let session = Session::in_database_with_idem(&cluster, &format!("shop_{n}")).await?;
        session.run(broken.break_it).await?;
        assert_eq!(claim(&session, "first").await?, "t");
        for ring in ["short", "standard", "long"] {
            session
                .run(&format!(
                    "SELECT idem_set_retention('{ring}', '200 milliseconds')"
                ))
                .await?;
        }
        until("the other rings rotate", async || {
            Ok(rotations(&session, "standard").await? >= 4
                && rotations(&session, "long").await? >= 4)
        })
        .await?;
        assert_eq!(
            logged(&cluster, broken)?,
            1,
            "{} is logged once",
            broken.step
        );
        let health = session.text(HEALTH).await?;
        ensure!(
            health.starts_with("critical|") && health.contains(broken.step),
            "{health}"
        );
        session.run(broken.mend_it).await?;
        until("the step succeeds again", async || {
            Ok(session.text(HEALTH).await?.starts_with("ok|"))
        })
        .await?;
    }
    Ok(())
}

/// I11. Goal: the list of transactions that a rotation waits for survives the failure of another
/// step. If every pass made a new list, that list would contain the later claim, and with
/// overlapping claims the ring would never rotate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i11_failing_step_loses_no_fence() -> Result<()> {
    let cluster = cluster("failing-fence")?
        .setting("idem.naptime", "100ms")
        .start()?;
    let session = Session::in_database_with_idem(&cluster, "shop").await?;
    let (early, late) = (
        Session::superuser(&cluster, "shop").await?,
        Session::superuser(&cluster, "shop").await?,
    );
    assert_eq!(claim(&session, "first").await?, "t");
    session.run(BROKEN[3].break_it).await?;
    early.run("BEGIN").await?;
    assert_eq!(claim(&early, "early").await?, "t");
    make_due(&session, "standard").await?;
    let opening = "SELECT phase = 'opening' FROM idem.ring WHERE name = 'standard'";
    until("the ring opens", async || {
        Ok(session.text(opening).await? == "t")
    })
    .await?;
    until(
        "the maintainer waits at the fence while another step fails",
        async || {
            let waits = "SELECT count(*) FROM idem.fence
                          WHERE name = 'ring standard' AND lockers <> '{}'";
            Ok(logged(&cluster, &BROKEN[3])? >= 1 && session.text(waits).await? == "1")
        },
    )
    .await?;
    late.run("BEGIN").await?;
    assert_eq!(claim(&late, "late").await?, "t");
    early.run("COMMIT").await?;
    until(
        "the ring rotates, although a later claim is open",
        async || Ok(rotations(&session, "standard").await? == 1),
    )
    .await?;
    late.run("COMMIT").await
}

/// I11. Goal: a maintainer continues the wait of an earlier one, which has ended. So a transaction
/// that began after the fence does not delay the rotation. IntervalStyle makes no difference.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i11_next_maintainer_continues_the_fence() -> Result<()> {
    let cluster = server("next-maintainer")?;
    let session = Session::in_database_with_idem(&cluster, "shop").await?;
    let (early, late, next) = (
        Session::superuser(&cluster, "shop").await?,
        Session::superuser(&cluster, "shop").await?,
        Session::superuser(&cluster, "shop").await?,
    );
    next.run("SET IntervalStyle = 'iso_8601'").await?;
    let rotate = "SELECT idem.rotate('standard')";
    assert_eq!(claim(&session, "m1").await?, "t");
    early.run("BEGIN").await?;
    assert_eq!(claim(&early, "early").await?, "t");
    make_due(&session, "standard").await?;
    assert_eq!(session.text(rotate).await?, "opened");
    assert_eq!(session.text(rotate).await?, "waiting");
    drop(session);
    late.run("BEGIN").await?;
    assert_eq!(claim(&late, "late").await?, "t");
    assert_eq!(next.text(rotate).await?, "waiting", "early is open");
    early.run("COMMIT").await?;
    assert_eq!(next.text(rotate).await?, "rotated", "late began later");
    assert_eq!(next.text(rotate).await?, "waiting", "late has entered");
    late.run("COMMIT").await?;
    assert_eq!(next.text(rotate).await?, "emptied");
    Ok(())
}

/// I11. Goal: a pass without a due step takes no lock that conflicts with the lock of another
/// session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i11_idle_pass_waits_for_no_lock() -> Result<()> {
    let cluster = server("idle")?;
    let session = Session::in_database_with_idem(&cluster, "shop").await?;
    session.run("CALL idem_maintain()").await?;
    let holder = Session::superuser(&cluster, "shop").await?;
    holder
        .run("BEGIN; LOCK TABLE idem.ring IN SHARE MODE")
        .await?;
    for ring in ["short", "standard", "long", "outbox"] {
        let step = session
            .text(&format!("SELECT idem.rotate('{ring}')"))
            .await?;
        assert_eq!(
            step, "idle",
            "{ring}: the step checks whether it is due before it takes the lock"
        );
    }
    Ok(())
}

/// I11. Goal: the step that empties a slice waits for one lock only, that of the table of claims.
/// While it holds this lock, it does not wait for the lock of the table of external calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i11_emptying_a_slice_waits_for_one_lock_only() -> Result<()> {
    let cluster = server("emptying")?;
    let session = Session::in_database_with_idem(&cluster, "shop").await?;
    let reader = Session::superuser(&cluster, "shop").await?;
    let rotate = "SELECT idem.rotate('standard')";
    make_due(&session, "standard").await?;
    assert_eq!(session.text(rotate).await?, "opened");
    assert_eq!(session.text(rotate).await?, "rotated");
    // The server reports each lock wait of this session that is longer than 10 ms. A wait of the
    // step ends after 50 ms.
    session
        .run(
            "SET deadlock_timeout = '10ms'; SET log_lock_waits = on;
             SET client_min_messages = 'log'",
        )
        .await?;
    for (table, waits) in [("inbox_standard_2", true), ("call_standard_2", false)] {
        reader
            .run(&format!(
                "BEGIN; LOCK TABLE idem.{table} IN ACCESS SHARE MODE"
            ))
            .await?;
        let _ = session.notices();
        assert_eq!(session.text(rotate).await?, "locked", "{table}");
        let notices = session.notices();
        let reported = notices.iter().any(|notice| {
            notice
                .message
                .contains("still waiting for AccessExclusiveLock")
        });
        assert_eq!(reported, waits, "{table}: {notices:?}");
        reader.run("COMMIT").await?;
    }
    assert_eq!(session.text(rotate).await?, "emptied");
    Ok(())
}

/// I11. Goal: a step that waits for a lock gives up after half of the time for which other sessions
/// may wait behind it, because it needs the rest for its work under the lock. Only
/// `idem.lock_out_claims`, which functions for administrators call, waits for longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i11_steps_wait_for_a_lock_for_50_ms() -> Result<()> {
    let cluster = server("lock-timeouts")?;
    let session = Session::in_database_with_idem(&cluster, "shop").await?;
    let limits = "SELECT p.proname, option
                    FROM pg_proc p CROSS JOIN LATERAL unnest(p.proconfig) AS option
                   WHERE p.pronamespace = 'idem'::regnamespace AND option LIKE 'lock_timeout=%'
                     AND option <> 'lock_timeout=50ms' ORDER BY 1";
    assert_eq!(
        session.text(limits).await?,
        "lock_out_claims|lock_timeout=2s"
    );
    let steps = "SELECT count(*) FROM pg_proc p
                  WHERE p.proname IN ('rotate', 'rotate_pending', 'rotate_payloads',
                                      'rotate_progress', 'note_no_pending')
                    AND 'lock_timeout=50ms' = ANY (p.proconfig)";
    assert_eq!(session.text(steps).await?, "5");
    Ok(())
}
