//! Tests of the checks of `idem_health()` and of their advice.

use anyhow::{Result, ensure};
use idem_cluster::Cluster;
use idem_testkit::ring::make_due;
use idem_testkit::{Session, until};

use super::{claim, cluster};

/// Starts a server without a worker, so the test decides when a pass runs.
fn server(name: &str) -> Result<Cluster> {
    cluster(name)?.setting("idem.databases", "none").start()
}

async fn check(session: &Session, name: &str) -> Result<String> {
    session
        .text(&format!(
            "SELECT status, detail FROM idem_health() WHERE check_name = '{name}'"
        ))
        .await
}

/// Goal: health reports no alarm before the first pass is due.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_is_ok_right_after_create_extension() -> Result<()> {
    let cluster = server("health-new")?;
    let session = Session::in_database_with_idem(&cluster, "shop").await?;
    let alarms = session
        .text("SELECT * FROM idem_health() WHERE status <> 'ok'")
        .await?;
    assert_eq!(alarms, "", "no alarm in a new database");
    let worker = check(&session, "worker").await?;
    ensure!(
        worker.contains("no pass yet"),
        "the detail names what is missing: {worker}"
    );
    Ok(())
}

/// Goal: after a change of the retention, health measures the delay of a rotation from the time of
/// the change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_judges_a_new_retention_from_its_start() -> Result<()> {
    let cluster = server("health-retention")?;
    let session = Session::in_database_with_idem(&cluster, "shop").await?;
    session
        .run(
            "UPDATE idem.ring SET rotated_at = rotated_at - interval '3 days' \
             WHERE name = 'standard'",
        )
        .await?;
    session
        .run("SELECT idem_set_retention('standard', '1 hour')")
        .await?;
    let rotation = check(&session, "rotation standard").await?;
    ensure!(
        rotation.starts_with("ok|"),
        "the rotation is due now and not late: {rotation}"
    );
    session
        .run(
            "UPDATE idem.ring SET scheduled_at = scheduled_at - interval '2 hours' \
             WHERE name = 'standard'",
        )
        .await?;
    let rotation = check(&session, "rotation standard").await?;
    ensure!(rotation.starts_with("critical|late by 02:0"), "{rotation}");
    Ok(())
}

/// Goal: health distinguishes a relay without a process from a relay that is behind, and advises
/// what to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_advises_when_nothing_runs_a_relay() -> Result<()> {
    let cluster = server("health-relay")?;
    let session = Session::in_database_with_idem(&cluster, "shop").await?;
    session.run("SELECT idem_send('t', '1'::jsonb)").await?;
    ensure!(check(&session, "relay default/0").await?.starts_with("ok|"));
    session
        .run("UPDATE idem.outbox_0 SET recorded_at = recorded_at - interval '10 minutes'")
        .await?;
    let relay = check(&session, "relay default/0").await?;
    ensure!(
        relay.starts_with("warning|")
            && relay.contains("nothing runs it: start a process for this relay.")
            && relay.contains("idem_drop_relay('default') loses")
            && relay.contains("from_oldest => true"),
        "{relay}"
    );
    let token = session
        .text("SELECT token FROM idem_relay_next('default')")
        .await?;
    let relay = check(&session, "relay default/0").await?;
    ensure!(
        relay.starts_with("warning|") && !relay.contains("nothing runs it"),
        "{relay}"
    );
    session
        .run(&format!("SELECT idem_relay_ack('default', 0, {token})"))
        .await?;
    ensure!(check(&session, "relay default/0").await?.starts_with("ok|"));
    Ok(())
}

/// Goal: a detail has no empty place for a name that does not exist, as "Destination  is near".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_details_have_no_empty_names() -> Result<()> {
    let cluster = server("health-details")?;
    let session = Session::in_database_with_idem(&cluster, "shop").await?;
    assert_eq!(check(&session, "dead letters").await?, "ok|none");
    let gaps = "SELECT * FROM idem_health() WHERE detail ~ '  | [,.:;]|^$' OR detail IS NULL";
    assert_eq!(session.text(gaps).await?, "");
    session
        .run("SELECT idem_reject('m', 'work', 'p', 'broken')")
        .await?;
    let letters = check(&session, "dead letters").await?;
    ensure!(
        letters.starts_with("warning|1, of destination work"),
        "{letters}"
    );
    ensure!(!letters.contains("idem.max_dead_letters"), "{letters}");
    assert_eq!(session.text(gaps).await?, "");
    Ok(())
}

/// I9. Goal: a role of kind monitor sees what delays a rotation: sessions, prepared transactions
/// and readers of the slice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i9_monitor_sees_what_holds_up_a_rotation() -> Result<()> {
    let cluster = server("health-blockers")?;
    let session = Session::in_database_with_idem(&cluster, "shop").await?;
    session
        .run("CREATE ROLE oncall LOGIN; SELECT idem_grant('oncall', 'monitor')")
        .await?;
    let monitor = Session::connect(&cluster, "shop", "oncall").await?;
    let blockers = "SELECT ring, coalesce(pid::text, gid), application_name, state, blocks \
                    FROM idem_rotation_blockers() ORDER BY 2";
    assert_eq!(monitor.text(blockers).await?, "", "no rotation is held up");

    let (holder, preparer, late) = (
        Session::superuser(&cluster, "shop").await?,
        Session::superuser(&cluster, "shop").await?,
        Session::superuser(&cluster, "shop").await?,
    );
    assert_eq!(claim(&session, "m0").await?, "t");
    holder
        .run("SET application_name = 'billing'; BEGIN")
        .await?;
    assert_eq!(claim(&holder, "m1").await?, "t");
    preparer.run("BEGIN").await?;
    assert_eq!(claim(&preparer, "m2").await?, "t");
    preparer.run("PREPARE TRANSACTION 'zz-held'").await?;
    make_due(&session, "standard").await?;
    assert_eq!(
        session.text("SELECT idem.rotate('standard')").await?,
        "opened"
    );
    assert_eq!(
        session.text("SELECT idem.rotate('standard')").await?,
        "waiting"
    );
    let pid = holder.pid().await?;
    assert_eq!(
        monitor.text(blockers).await?,
        format!(
            "standard|{pid}|billing|idle in transaction|the fence before the slices rotate\n\
             standard|zz-held|NULL|NULL|the fence before the slices rotate"
        )
    );
    make_due(&session, "standard").await?;
    make_due(&session, "standard").await?;
    let health = check(&monitor, "rotation standard").await?;
    ensure!(
        health.starts_with("critical|late")
            && health.contains(&format!("pid {pid}"))
            && health.contains("zz-held"),
        "{health}"
    );

    holder.run("COMMIT").await?;
    late.run("BEGIN; LOCK TABLE idem.inbox_standard_2 IN ACCESS SHARE MODE")
        .await?;
    session.run("COMMIT PREPARED 'zz-held'").await?;
    assert_eq!(
        session.text("SELECT idem.rotate('standard')").await?,
        "rotated"
    );
    assert_eq!(
        session.text("SELECT idem.rotate('standard')").await?,
        "locked"
    );
    let reader = late.pid().await?;
    assert_eq!(
        monitor.text(blockers).await?,
        format!("standard|{reader}|test|idle in transaction|TRUNCATE of idem.inbox_standard_2")
    );
    late.run("COMMIT").await?;
    assert_eq!(
        session.text("SELECT idem.rotate('standard')").await?,
        "emptied"
    );
    assert_eq!(monitor.text(blockers).await?, "");
    Ok(())
}

/// I9. Goal: a monitor sees a session that holds the lock of maintenance, for example after ANALYZE
/// in a transaction block. Such a session also stops the first step of a rotation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i9_monitor_sees_who_holds_the_lock_of_maintenance() -> Result<()> {
    let cluster = server("health-analyze")?;
    let session = Session::in_database_with_idem(&cluster, "shop").await?;
    let analyzes = Session::superuser(&cluster, "shop").await?;
    let blockers = "SELECT ring, pid, blocks FROM idem_rotation_blockers()";
    analyzes.run("BEGIN; ANALYZE idem.ring").await?;
    let pid = analyzes.pid().await?;
    assert_eq!(session.text(blockers).await?, "", "no ring is due");
    make_due(&session, "standard").await?;
    make_due(&session, "standard").await?;
    assert_eq!(
        session.text("SELECT idem.rotate('standard')").await?,
        "locked"
    );
    let blocker = format!("standard|{pid}|the lock of maintenance");
    until("the monitor sees the session", async || {
        Ok(session.text(blockers).await? == blocker)
    })
    .await?;
    let health = check(&session, "rotation standard").await?;
    ensure!(health.contains(&format!("pid {pid}")), "{health}");
    analyzes.run("COMMIT").await?;
    assert_eq!(session.text(blockers).await?, "");
    Ok(())
}

/// I11. Goal: a CALL that waits at a fence holds no lock of maintenance, so other rings rotate. A
/// monitor sees the transaction that the fences wait for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i11_call_at_a_fence_delays_no_other_ring() -> Result<()> {
    let cluster = server("health-at-fence")?;
    let session = Session::in_database_with_idem(&cluster, "shop").await?;
    let (holder, maintainer) = (
        Session::superuser(&cluster, "shop").await?,
        Session::superuser(&cluster, "shop").await?,
    );
    holder.run("BEGIN").await?;
    assert_eq!(claim(&holder, "m1").await?, "t");
    let (claimer, pid) = (holder.pid().await?, maintainer.pid().await?);
    make_due(&session, "standard").await?;
    let pass = tokio::spawn(async move { maintainer.run("CALL idem_maintain()").await });
    let at_fence = format!("SELECT wait_event_type FROM pg_stat_activity WHERE pid = {pid}");
    until("the pass waits at the fence", async || {
        Ok(session.text(&at_fence).await? == "Extension")
    })
    .await?;
    make_due(&session, "long").await?;
    assert_eq!(session.text("SELECT idem.rotate('long')").await?, "opened");

    let blockers = "SELECT ring, pid, blocks FROM idem_rotation_blockers() ORDER BY ring";
    assert_eq!(
        session.text(blockers).await?,
        format!(
            "long|{claimer}|the fence before the slices rotate\n\
             standard|{claimer}|the fence before the slices rotate"
        )
    );
    holder.run("COMMIT").await?;
    pass.await??;
    assert_eq!(session.text(blockers).await?, "");
    Ok(())
}

/// I9. Goal: a monitor of any database sees the databases in which the worker has run no pass for
/// too long, for example because too many databases need it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i9_health_names_databases_without_passes() -> Result<()> {
    let cluster = cluster("health-late")?
        .setting("idem.naptime", "100ms")
        .start()?;
    let session = Session::in_database_with_idem(&cluster, "shop").await?;
    let other = Session::in_database_with_idem(&cluster, "other_shop").await?;
    for database in [&session, &other] {
        assert_eq!(claim(database, "m1").await?, "t");
    }
    let passes = "SELECT count(*) FROM idem.worker_passes() p JOIN pg_database d
                      ON d.oid = p.database
                   WHERE d.datname LIKE '%shop' AND p.since_pass < '1 minute'";
    until("the worker has run passes in both databases", async || {
        Ok(session.text(passes).await? == "2")
    })
    .await?;
    let health = check(&session, "worker").await?;
    ensure!(health.starts_with("ok|"), "{health}");
    // As if the last pass in each database was long ago.
    session
        .run(
            "CREATE OR REPLACE FUNCTION idem.worker_passes()
                 RETURNS TABLE (database oid, since_pass interval) LANGUAGE sql
                 AS $$ SELECT d.oid, interval '1 hour' FROM pg_database d
                        WHERE d.datname = 'other_shop' $$",
        )
        .await?;
    let health = check(&session, "worker").await?;
    ensure!(
        health.starts_with("warning|") && health.contains("other_shop (01:00:00)"),
        "{health}"
    );
    Ok(())
}

/// I9. Goal: a monitor also sees a transaction that began after the step of the rotation, if a
/// maintainer first checked the step later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i9_monitor_sees_a_blocker_that_began_after_the_step() -> Result<()> {
    let cluster = server("health-later")?;
    let session = Session::in_database_with_idem(&cluster, "shop").await?;
    let (later, maintainer) = (
        Session::superuser(&cluster, "shop").await?,
        Session::superuser(&cluster, "shop").await?,
    );
    make_due(&session, "standard").await?;
    let rotate = "SELECT idem.rotate('standard')";
    assert_eq!(session.text(rotate).await?, "opened");
    // Move the step ten seconds into the past, so that the claim begins long after the step.
    session
        .run(
            "UPDATE idem.ring SET opened[2] = opened[2] - interval '10 seconds'
              WHERE name = 'standard'",
        )
        .await?;
    later.run("BEGIN").await?;
    assert_eq!(claim(&later, "m1").await?, "t");
    assert_eq!(maintainer.text(rotate).await?, "waiting");
    let pid = later.pid().await?;
    let blockers = format!("SELECT blocks FROM idem_rotation_blockers() WHERE pid = {pid}");
    until("the blocker is shown", async || {
        Ok(session.text(&blockers).await? == "the fence before the slices rotate")
    })
    .await?;
    make_due(&session, "standard").await?;
    make_due(&session, "standard").await?;
    let health = check(&session, "rotation standard").await?;
    ensure!(health.contains(&format!("pid {pid}")), "{health}");
    later.run("COMMIT").await?;
    assert_eq!(maintainer.text(rotate).await?, "rotated");
    Ok(())
}

/// Goal: health reports due times that are so far ahead that a wrong clock has probably set them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_reports_due_times_that_lie_far_ahead() -> Result<()> {
    let cluster = server("health-due")?;
    let session = Session::in_database_with_idem(&cluster, "shop").await?;
    session
        .run("SELECT idem_receive('m1', 'orders', '1'::jsonb)")
        .await?;
    session
        .run(
            "SELECT idem_receive('m2', 'orders', '2'::jsonb, \
             deliver_after => now() + interval '30 days')",
        )
        .await?;
    ensure!(
        check(&session, "due times").await?.starts_with("ok|"),
        "the due times are within the usual range"
    );
    session
        .run(
            "SELECT idem_receive('m3', 'orders', '3'::jsonb, \
             deliver_after => now() + interval '3 years')",
        )
        .await?;
    let due = check(&session, "due times").await?;
    ensure!(
        due.starts_with("warning|") && due.contains("orders"),
        "{due}"
    );
    Ok(())
}

/// I4. Goal: dead letters do not fill the disk. When the limit is reached, a rejection fails, so
/// its message stays in the broker, and health warns before the limit is reached.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i4_rejections_beyond_the_limit_fail_and_alarm() -> Result<()> {
    let cluster = cluster("health-letters")?
        .setting("idem.databases", "none")
        .setting("idem.max_dead_letters", "4")
        .start()?;
    let session = Session::in_database_with_idem(&cluster, "shop").await?;
    for n in 1..=3 {
        session
            .run(&format!(
                "SELECT idem_reject('m{n}', 'orders', '', 'poison')"
            ))
            .await?;
    }
    let letters = check(&session, "dead letters").await?;
    ensure!(
        letters.starts_with("warning|3, of destination orders"),
        "{letters}"
    );
    session
        .run("SELECT idem_reject('m4', 'orders', '', 'poison')")
        .await?;
    let letters = check(&session, "dead letters").await?;
    ensure!(
        letters.starts_with("critical|4")
            && letters.contains("Destination orders is near idem.max_dead_letters"),
        "{letters}"
    );
    let refused = session
        .refused("SELECT idem_reject('m5', 'orders', '', 'poison')")
        .await?;
    assert_eq!(refused.sqlstate, "53400", "{refused:?}");
    assert_eq!(
        session
            .text("SELECT idem_reject('m4', 'orders', '', 'again')")
            .await?,
        "f",
        "the dead letter exists already"
    );
    assert_eq!(
        session
            .text("SELECT idem_reject('m5', 'mail', '', 'poison')")
            .await?,
        "t",
        "each destination has its own limit"
    );
    let token = session
        .text("SELECT token FROM idem_acquire('m5', 'orders')")
        .await?;
    let bury = format!("SELECT idem_bury('m5', 'orders', {token}, '', 'poison')");
    assert_eq!(
        session.refused(&bury).await?.sqlstate,
        "53400",
        "the failed rejection left no row, and idem_bury fails, too"
    );
    assert_eq!(
        session.text("SELECT idem_discard('m1', 'orders')").await?,
        "t"
    );
    session.run(&bury).await?;
    Ok(())
}

/// I9. Goal: an operator sees which session a claim waits for, and since when. Health warns when
/// the wait is long. A wait for a row of the application is no wait of a claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i9_waiting_claims_are_shown_with_their_blocker() -> Result<()> {
    let cluster = cluster("health-waiting")?
        .setting("max_prepared_transactions", "1")
        .start()?;
    let session = Session::in_database_with_idem(&cluster, "shop").await?;
    session
        .run(
            "CREATE TABLE stock (n int); INSERT INTO stock VALUES (1);
             CREATE ROLE operator LOGIN; SELECT idem_grant('operator', 'operator')",
        )
        .await?;
    let operator = Session::connect(&cluster, "shop", "operator").await?;
    let holder = Session::superuser(&cluster, "shop").await?;
    holder.run("SET application_name = 'billing'").await?;
    let seen = "SELECT pid, blocked_by, blocker_application_name, blocker_state, blocker_gid,
                       since <= clock_timestamp() AND blocker_xact_start <= since
                  FROM idem.waiting_claims";
    assert_eq!(operator.text(seen).await?, "");
    let ok = "ok|no claim has waited for more than 00:00:10";
    assert_eq!(check(&operator, "waiting claims").await?, ok);

    for (id, prepared) in [("m1", false), ("m2", true)] {
        holder.run("BEGIN").await?;
        assert_eq!(claim(&holder, id).await?, "t");
        if prepared {
            holder.run("PREPARE TRANSACTION 'held'").await?;
        }
        let waiter = Session::superuser(&cluster, "shop").await?;
        let pid = waiter.pid().await?;
        let claiming = tokio::spawn(async move {
            waiter.run("BEGIN").await?;
            let claimed = claim(&waiter, id).await?;
            waiter.run("COMMIT").await?;
            anyhow::Ok(claimed)
        });
        let blocker = match prepared {
            true => "NULL|NULL|NULL|held|t".to_owned(),
            false => format!("{}|billing|idle in transaction|NULL|t", holder.pid().await?),
        };
        until("the operator sees the claim that waits", async || {
            Ok(operator.text(seen).await? == format!("{pid}|{blocker}"))
        })
        .await?;
        let health = "SELECT status, detail FROM idem.check_waiting_claims('0')";
        let health = session.text(health).await?;
        let names = match prepared {
            true => "for prepared transaction 'held': see idem.waiting_claims".to_owned(),
            false => format!(
                "for pid {} (billing, idle in transaction)",
                holder.pid().await?
            ),
        };
        ensure!(
            health.starts_with("warning|1 sessions wait") && health.contains(&names),
            "{health}"
        );
        let end = if prepared {
            "ROLLBACK PREPARED 'held'"
        } else {
            "ROLLBACK"
        };
        holder.run(end).await?;
        assert_eq!(claiming.await??, "t");
    }

    // Two transactions with claims that update the same row.
    holder.run("BEGIN").await?;
    assert_eq!(claim(&holder, "m3").await?, "t");
    holder.run("UPDATE stock SET n = n - 1").await?;
    let waiter = Session::superuser(&cluster, "shop").await?;
    let pid = waiter.pid().await?;
    waiter.run("BEGIN").await?;
    assert_eq!(claim(&waiter, "m4").await?, "t");
    let updating = tokio::spawn(async move { waiter.run("UPDATE stock SET n = n - 1").await });
    let waits = format!("SELECT wait_event FROM pg_stat_activity WHERE pid = {pid}");
    until("the UPDATE waits", async || {
        Ok(session.text(&waits).await? == "transactionid")
    })
    .await?;
    assert_eq!(operator.text(seen).await?, "");
    holder.run("COMMIT").await?;
    updating.await?
}
