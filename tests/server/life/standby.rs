//! Tests of a physical standby: it executes functions that only read, and rejects claims. After its
//! promotion it continues with the state of the primary.

use anyhow::{Result, ensure};
use idem_cluster::Cluster;
use idem_testkit::replica::caught_up;
use idem_testkit::ring::{SEALED, make_due, rotations};
use idem_testkit::{Session, until};

use super::{claim, cluster, drain, effects, record};

async fn rejects_writes(standby: &Session) -> Result<()> {
    for statement in [
        "SELECT idem_try_claim('m9', 'orders')",
        "SELECT idem_try_claim('m1', 'orders')",
        "SELECT idem_try_claim(gen_random_uuid(), 'orders')",
        "SELECT idem_try_claim_batch(ARRAY['m9'], 'orders')",
        "SELECT idem_try_claim_uuid_batch(ARRAY[gen_random_uuid()], 'orders')",
        "SELECT * FROM idem_claim('m9', 'orders')",
        "SELECT * FROM idem_claim_in_block('m9', 'orders')",
        r#"SELECT idem_try_record('m9', 'orders', '[]')"#,
        r#"SELECT idem_record_effects('m1', 'orders', '[{"topic": "t", "payload": 1}]')"#,
        "SELECT idem_replay_effects('m1', 'orders')",
        "SELECT idem_send('t', '1')",
        "SELECT idem_send_bytes('t', '1')",
        "SELECT idem_receive('m9', 'orders', '1')",
        "SELECT idem_receive_bytes('m9', 'orders', '1')",
        "SELECT idem_forget('m1', 'orders')",
        "SELECT * FROM idem_begin_call('m1', 'orders', 'charge')",
        "SELECT idem_configure('orders', '1 day')",
        "SELECT idem_set_retention('short', '1 minute')",
        "SELECT * FROM idem_relay_next('default')",
        "SELECT idem_create_relay('mail')",
        "SELECT idem_drop_relay('default')",
        "CALL idem_maintain()",
    ] {
        let refusal = standby.refused(statement).await?;
        assert_eq!(refusal.sqlstate, "25006", "{statement}: {refusal:?}");
    }
    Ok(())
}

/// I1, I3: a standby finds claims and effects, rejects claims, and continues after its promotion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_i3_standby_reads_and_continues_after_promotion() -> Result<()> {
    let mut primary: Cluster = cluster("primary")?
        .setting("idem.naptime", "100ms")
        // The primary has no worker, because the test rotates its rings. After the promotion the
        // worker of the standby rotates the rings.
        .setting("idem.databases", "none")
        .start()?;
    let on_primary = Session::in_database_with_idem(&primary, "shop").await?;
    assert_eq!(record(&on_primary, "m1").await?, "t");
    let recorded = effects(&on_primary, "m1").await?;

    let mut standby = primary.standby().setting("idem.databases", "").start()?;
    let reader = Session::superuser(&standby, "shop").await?;
    caught_up(&on_primary, &reader).await?;
    let is_claimed = async |id: &str| {
        reader
            .text(&format!("SELECT idem_is_claimed('{id}', 'orders')"))
            .await
    };
    assert_eq!(is_claimed("m1").await?, "t");
    assert_eq!(is_claimed("m2").await?, "f");
    assert_eq!(effects(&reader, "m1").await?, recorded);
    rejects_writes(&reader).await?;
    ensure!(
        reader
            .text("SELECT count(*) FROM idem_health()")
            .await?
            .parse::<i64>()?
            >= 5
    );

    // This session has cached the rings. It must notice the rotations when the standby replays the
    // WAL.
    for rotation in 1..=SEALED {
        make_due(&on_primary, "standard").await?;
        on_primary.run("CALL idem_maintain()").await?;
        assert_eq!(
            record(&on_primary, &format!("after rotation {rotation}")).await?,
            "t"
        );
        caught_up(&on_primary, &reader).await?;
        assert_eq!(
            is_claimed(&format!("after rotation {rotation}")).await?,
            "t"
        );
        assert_eq!(
            is_claimed("m1").await?,
            "t",
            "the claim is kept in the sealed slices"
        );
    }

    // The primary is killed during a rotation.
    make_due(&on_primary, "standard").await?;
    assert_eq!(
        on_primary.text("SELECT idem.rotate('standard')").await?,
        "opened"
    );
    assert_eq!(record(&on_primary, "last").await?, "t");
    caught_up(&on_primary, &reader).await?;
    let before = rotations(&on_primary, "standard").await?;
    primary.kill()?;
    standby.promote()?;

    for id in ["m1", "after rotation 1", "after rotation 2", "last"] {
        let claimed = claim(&reader, id).await?;
        // m1 is at the end of its retention, so it may be forgotten if the worker of the new
        // primary has rotated by now. The rotations are read after the claim, so a rotation before
        // the claim is counted.
        let forgotten = id == "m1" && rotations(&reader, "standard").await? > before;
        assert!(
            claimed == "f" || forgotten,
            "{id} was claimed before the promotion: {claimed}"
        );
    }
    assert_eq!(
        record(&reader, "m9").await?,
        "t",
        "in a session that began before the promotion"
    );
    until(
        "the worker of the new primary finishes the rotation",
        async || {
            let state =
                "SELECT rotations, phase <> 'steady' FROM idem.ring WHERE name = 'standard'";
            Ok(reader.text(state).await? == format!("{}|f", before + 1))
        },
    )
    .await?;
    assert_eq!(
        claim(&reader, "last").await?,
        "f",
        "the claim is kept over the rotation"
    );
    let mut recorded = vec!["m1".to_owned()];
    recorded.extend((1..=SEALED).map(|rotation| format!("after rotation {rotation}")));
    recorded.extend(["last".to_owned(), "m9".to_owned()]);
    assert_eq!(drain(&reader, "default", 0).await?, recorded);
    standby.restart()
}

/// I11. Goal: maintenance continues while the synchronous standby is not connected. A step holds
/// its locks until it has committed, so it must not wait for the standby. Otherwise sessions that
/// only read would wait for the step.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i11_maintenance_continues_without_synchronous_standby() -> Result<()> {
    let server = cluster("no-standby")?
        .setting("idem.naptime", "100ms")
        .setting("idem.databases", "served")
        .start()?;
    let (served, by_hand) = (
        Session::in_database_with_idem(&server, "served").await?,
        Session::in_database_with_idem(&server, "by_hand").await?,
    );
    for session in [&served, &by_hand] {
        assert_eq!(claim(session, "m1").await?, "t");
        session.run("SET synchronous_commit = local").await?;
    }
    served
        .run("ALTER SYSTEM SET synchronous_standby_names = 'away'")
        .await?;
    served.run("SELECT pg_reload_conf()").await?;
    for session in [&served, &by_hand] {
        until("commits wait for the standby", async || {
            Ok(session.text("SHOW synchronous_standby_names").await? == "away")
        })
        .await?;
        make_due(session, "standard").await?;
    }
    until("the worker has rotated", async || {
        Ok(rotations(&served, "standard").await? > 0)
    })
    .await?;
    by_hand
        .run("SET synchronous_commit = on; SET statement_timeout = '60s'")
        .await?;
    until("a session has rotated", async || {
        by_hand.run("CALL idem_maintain()").await?;
        Ok(rotations(&by_hand, "standard").await? > 0)
    })
    .await
}
