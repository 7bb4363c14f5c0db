//! pg_dump and pg_restore keep claims, effects and cursors (I1, I3, I4), also when the transaction
//! ids of the new cluster are behind those of the old cluster.

use anyhow::{Result, ensure};
use idem_testkit::ring::{build_filters, make_due, make_segment_due, rotations};
use idem_testkit::{Dump, Session};

use super::{claim, cluster, drain, effects, record};

/// Returns every row of every table that contains state, as text.
async fn contents(session: &Session) -> Result<String> {
    let tables = session
        .text(
            "SELECT relname FROM pg_class WHERE relnamespace = 'idem'::regnamespace \
             AND relkind = 'r' \
             AND relname NOT IN ('clock', 'fence', 'progress_rotation', 'relay_partition') \
             ORDER BY 1",
        )
        .await?;
    let mut contents = String::new();
    for table in tables.lines() {
        let rows = session
            .text(&format!(
                "SELECT '{table}', to_jsonb(t) - ARRAY['restored_at', 'restored_at_xid'] \
                 FROM idem.{table} t ORDER BY 2::text"
            ))
            .await?;
        contents.push_str(&rows);
    }
    Ok(contents)
}

const SEQUENCES: &str =
    "SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = 'idem' ORDER BY 1";

/// Fills a database. Relay `mail` is behind and has leased a batch, and relay `audit` has read
/// nothing. Each ring has a configured retention, and ring `standard` is at `step` of a rotation.
async fn fill(session: &Session, step: &str) -> Result<()> {
    for (ring, retention) in [
        ("long", "45 days"),
        ("standard", "10 days"),
        ("short", "90 minutes"),
    ] {
        session
            .run(&format!(
                "SELECT idem_set_retention('{ring}', '{retention}')"
            ))
            .await?;
    }
    session
        .run("SELECT idem_configure('invoices', '1 hour')")
        .await?;
    session
        .run("SELECT idem_create_relay('mail'); SELECT idem_create_relay('audit', 2)")
        .await?;
    for id in ["m1", "m2", "m3", "m4", "m5"] {
        assert_eq!(record(session, id).await?, "t");
    }
    assert_eq!(
        session
            .text("SELECT idem_try_claim('i1', 'invoices')")
            .await?,
        "t"
    );
    // m1 and m2 are acknowledged, m3 is leased.
    let token = session
        .text("SELECT max(token) FROM idem_relay_next('mail', 0, 2)")
        .await?;
    session
        .run(&format!("SELECT idem_relay_ack('mail', 0, {token})"))
        .await?;
    assert_eq!(
        session
            .text("SELECT count(*) FROM idem_relay_next('mail', 0, 1, '1 millisecond')")
            .await?,
        "1"
    );
    if step == "advancing" {
        build_filters(session).await?;
        make_segment_due(session, "standard").await?;
    } else {
        make_due(session, "standard").await?;
    }
    loop {
        if session.text("SELECT idem.rotate('standard')").await? == step {
            return Ok(());
        }
    }
}

/// Asserts that the restored database has the claims and effects of the dumped database, and that
/// its relays and its rotation continue.
async fn assert_continues(restored: &Session, step: &str, recorded: &[String]) -> Result<()> {
    for (n, recorded) in recorded.iter().enumerate() {
        let id = format!("m{}", n + 1);
        assert_eq!(
            claim(restored, &id).await?,
            "f",
            "{id} was claimed before the dump"
        );
        assert_eq!(
            effects(restored, &id).await?,
            *recorded,
            "{id}: the same facts"
        );
    }
    assert_eq!(
        restored
            .text("SELECT idem_try_claim('i1', 'invoices')")
            .await?,
        "f"
    );
    assert_eq!(
        restored.text("SELECT idem_try_claim('i1', 'new')").await?,
        "t",
        "a new destination has its own claims"
    );
    assert_eq!(record(restored, "m6").await?, "t");

    assert_eq!(
        drain(restored, "mail", 0).await?,
        ["m3", "m4", "m5", "m6"],
        "the relay continues at its cursor"
    );
    let mut audited = drain(restored, "audit", 0).await?;
    audited.extend(drain(restored, "audit", 1).await?);
    assert_eq!(
        audited,
        ["m1", "m2", "m3", "m4", "m5", "m6"],
        "the effects of one key are in one partition, in order"
    );

    let before = rotations(restored, "standard").await?;
    restored.run("CALL idem_maintain()").await?;
    assert_eq!(
        rotations(restored, "standard").await? - before,
        i64::from(step == "opened")
    );
    make_due(restored, "standard").await?;
    restored.run("CALL idem_maintain()").await?;
    assert_eq!(
        rotations(restored, "standard").await? - before,
        1 + i64::from(step == "opened")
    );
    assert_eq!(
        claim(restored, "m1").await?,
        "f",
        "the claim is kept over a rotation"
    );
    Ok(())
}

/// Dumps a database whose ring `standard` is at `step` of a rotation, and restores it. Asserts that
/// every row is restored once, and that the claims, the relays and the rotation continue.
async fn assert_restored_database_continues(step: &str, drop_default: bool) -> Result<()> {
    // The cluster has no worker, because a worker would rotate before the two databases are
    // compared.
    let cluster = cluster("dumped")?
        .setting("idem.databases", "none")
        .start()?;
    let session = Session::in_database_with_idem(&cluster, "original").await?;
    if drop_default {
        session.run("SELECT idem_drop_relay('default')").await?;
    }
    fill(&session, step).await?;
    let mut recorded = Vec::new();
    for n in 1..=5 {
        recorded.push(effects(&session, &format!("m{n}")).await?);
    }
    ensure!(recorded.iter().all(|r| !r.is_empty()));

    let restored = Dump::of(&cluster, "original")?
        .restore(&cluster, "restored")
        .await?;
    assert_eq!(
        contents(&restored).await?,
        contents(&session).await?,
        "every row is restored once"
    );
    assert_eq!(
        restored.text(SEQUENCES).await?,
        session.text(SEQUENCES).await?
    );
    assert_continues(&restored, step, &recorded).await?;
    if drop_default {
        assert_eq!(
            restored
                .refused("SELECT * FROM idem_relay_next('default')")
                .await?
                .sqlstate,
            "42704"
        );
        assert_eq!(
            restored
                .text("SELECT DISTINCT relay FROM idem.relays ORDER BY 1")
                .await?,
            "audit\nmail"
        );
    } else {
        assert_eq!(drain(&restored, "default", 0).await?.len(), 6);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_i3_i4_restored_database_continues() -> Result<()> {
    assert_restored_database_continues("opened", false).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_i3_i4_database_restored_between_segments_continues() -> Result<()> {
    assert_restored_database_continues("advancing", false).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_i3_i4_restored_database_has_no_dropped_relay() -> Result<()> {
    assert_restored_database_continues("rotated", true).await
}

/// I9. Goal: a dump contains the kinds that a role was granted, so `idem_revoke` can revoke one of
/// two kinds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i9_restored_database_knows_the_kinds_of_a_role() -> Result<()> {
    let cluster = cluster("dumped-kinds")?.start()?;
    let session = Session::in_database_with_idem(&cluster, "original").await?;
    session
        .run("CREATE ROLE app; SELECT idem_grant('app', 'consumer'), idem_grant('app', 'receiver')")
        .await?;
    let restored = Dump::of(&cluster, "original")?
        .restore(&cluster, "restored")
        .await?;
    restored
        .run("SELECT idem_revoke('app', 'consumer')")
        .await?;
    let may = "SELECT has_function_privilege('app', 'idem_try_claim(text, text)', 'EXECUTE'),
                      has_function_privilege('app', 'idem_is_claimed(text, text)', 'EXECUTE'),
                      has_schema_privilege('app', 'idem', 'USAGE')";
    assert_eq!(restored.text(may).await?, "f|t|f");
    Ok(())
}

/// I4, I5: a restore into a younger cluster is detected, and idem_repair_relays() repairs it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i4_i5_restore_into_younger_cluster_is_repaired() -> Result<()> {
    let old = cluster("older")?.start()?;
    // Use up so many transaction ids that the younger cluster does not reach them.
    Session::superuser(&old, "postgres")
        .await?
        .run(
            "DO $$ BEGIN SET synchronous_commit = off; FOR n IN 1 .. 20000 LOOP \
             PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$",
        )
        .await?;
    let session = Session::in_database_with_idem(&old, "original").await?;
    session
        .run("SELECT idem_create_relay('mail'); SELECT idem_create_relay('audit')")
        .await?;
    assert_eq!(record(&session, "m1").await?, "t");
    assert_eq!(record(&session, "m2").await?, "t");
    assert_eq!(drain(&session, "mail", 0).await?, ["m1", "m2"]);
    // Relay `audit` has acknowledged only a part of the effects between its two snapshots.
    let token = session
        .text("SELECT token FROM idem_relay_next('audit', 0, 1)")
        .await?;
    session
        .run(&format!("SELECT idem_relay_ack('audit', 0, {token})"))
        .await?;
    assert_eq!(record(&session, "m3").await?, "t");
    assert_eq!(record(&session, "m4").await?, "t");
    let recorded = effects(&session, "m1").await?;

    let young = cluster("younger")?.start()?;
    let restored = Dump::of(&old, "original")?
        .restore(&young, "restored")
        .await?;
    // This effect is recorded before the repair.
    assert_eq!(record(&restored, "m5").await?, "t");

    let refusal = restored
        .refused("SELECT * FROM idem_relay_next('mail')")
        .await?;
    assert_eq!(refusal.sqlstate, "55000", "{refusal:?}");
    ensure!(refusal.hint.contains("idem_repair_relays()"), "{refusal:?}");
    let health = "SELECT status, detail FROM idem_health() WHERE check_name = 'transaction ids'";
    let critical = restored.text(health).await?;
    ensure!(
        critical.starts_with("critical|") && critical.contains("idem_repair_relays()"),
        "{critical}"
    );

    restored.run("SELECT idem_repair_relays()").await?;
    ensure!(restored.text(health).await?.starts_with("ok|"));
    assert_eq!(record(&restored, "m6").await?, "t");
    assert_eq!(
        drain(&restored, "mail", 0).await?,
        ["m3", "m4", "m5", "m6"],
        "no effect is lost, and the order is kept"
    );
    assert_eq!(
        drain(&restored, "audit", 0).await?,
        ["m2", "m3", "m4", "m5", "m6"]
    );
    assert_eq!(
        drain(&restored, "default", 0).await?,
        ["m1", "m2", "m3", "m4", "m5", "m6"]
    );
    assert_eq!(claim(&restored, "m1").await?, "f");
    assert_eq!(effects(&restored, "m1").await?, recorded);
    Ok(())
}

/// I4: at the restore the cursor of the relay is ahead of the transaction ids of the younger
/// cluster. Before the relay reads, the younger cluster assigns ids beyond those of the cursor. The
/// relay must still fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i4_restore_is_detected_after_cluster_has_caught_up() -> Result<()> {
    let burn = "DO $$ BEGIN SET synchronous_commit = off; FOR n IN 1 .. 3000 LOOP \
                PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$";
    let old = cluster("ahead")?.start()?;
    Session::superuser(&old, "postgres")
        .await?
        .run(burn)
        .await?;
    let session = Session::in_database_with_idem(&old, "original").await?;
    session.run("SELECT idem_create_relay('mail')").await?;
    assert_eq!(record(&session, "m1").await?, "t");
    assert_eq!(drain(&session, "mail", 0).await?, ["m1"]);

    let young = cluster("behind")?.start()?;
    let restored = Dump::of(&old, "original")?
        .restore(&young, "restored")
        .await?;
    assert_eq!(record(&restored, "m2").await?, "t");
    Session::superuser(&young, "postgres")
        .await?
        .run(burn)
        .await?;
    Session::superuser(&young, "postgres")
        .await?
        .run(burn)
        .await?;
    assert_eq!(record(&restored, "m3").await?, "t");

    let refusal = restored
        .refused("SELECT * FROM idem_relay_next('mail')")
        .await?;
    assert_eq!(refusal.sqlstate, "55000", "{refusal:?}");
    restored.run("SELECT idem_repair_relays()").await?;
    assert_eq!(
        drain(&restored, "mail", 0).await?,
        ["m2", "m3"],
        "no effect is lost, and the order is kept"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_dump_during_a_rotation_keeps_every_claim() -> Result<()> {
    let cluster = cluster("dumping")?
        .setting("idem.databases", "none")
        .start()?;
    let session = Session::in_database_with_idem(&cluster, "busy").await?;
    // pg_dump locks the tables that it reads. A slice cannot be truncated during the dump, and the
    // rotation continues after it.
    let dump = Session::superuser(&cluster, "busy").await?;
    assert_eq!(record(&session, "m1").await?, "t");
    make_due(&session, "standard").await?;
    for step in ["opened", "rotated"] {
        assert_eq!(session.text("SELECT idem.rotate('standard')").await?, step);
    }
    dump.run("BEGIN; LOCK TABLE idem.inbox_standard_2 IN ACCESS SHARE MODE")
        .await?;
    assert_eq!(
        session.text("SELECT idem.rotate('standard')").await?,
        "locked"
    );
    assert_eq!(
        claim(&session, "m1").await?,
        "f",
        "no claim waits behind the attempt"
    );
    assert_eq!(claim(&session, "m2").await?, "t");
    dump.run("COMMIT").await?;
    assert_eq!(
        session.text("SELECT idem.rotate('standard')").await?,
        "emptied"
    );
    Ok(())
}
