//! Tests of I4 after crashes and restores, which can set the next transaction id back to a lower
//! value.

use anyhow::Result;
use idem_cluster::{Cluster, Install};
use idem_testkit::{Database, Session, until};

use super::reader::{Reader, send, send_key};

/// I4: transaction ids that were assigned before a crash, and under which nothing was written, are
/// assigned again after the crash. The cursor lists these ids as running. A relay must not fail,
/// and must deliver the effects of a new transaction with such an id.
#[tokio::test]
async fn i4_relay_continues_after_a_crash_that_reuses_xids() -> Result<()> {
    let mut cluster = Cluster::builder(&Install::from_env()?)
        .name("relays")
        .setting("shared_buffers", "32MB")
        .setting("idem.databases", "none")
        .start()?;
    let session = Session::superuser(&cluster, "postgres").await?;
    session.run("CREATE EXTENSION idem").await?;
    send(&session, "before").await?;
    let relay = Reader::with(Session::superuser(&cluster, "postgres").await?, "default");
    relay
        .session
        .run("BEGIN; SELECT pg_current_xact_id()")
        .await?;
    let mut silent = Vec::new();
    for _ in 0..20 {
        let session = Session::superuser(&cluster, "postgres").await?;
        session.run("BEGIN; SELECT pg_current_xact_id()").await?;
        silent.push(session);
    }
    let batch = relay.batch().await?;
    relay.ack(batch.token).await?;
    relay.session.run("COMMIT").await?;
    let cursor =
        "SELECT pg_snapshot_xmax(snapshot_from) FROM idem.progress ORDER BY pos DESC LIMIT 1";
    let cursor: u64 = session.text(cursor).await?.parse()?;
    cluster.kill()?;
    cluster.start()?;

    let session = Session::superuser(&cluster, "postgres").await?;
    let next: u64 = session.text("SELECT idem.next_xid()").await?.parse()?;
    assert!(
        next + 2 < cursor,
        "the crash has taken back no transaction id: next is {next}, the cursor has {cursor}"
    );
    let health = "SELECT status FROM idem_health() WHERE check_name = 'transaction ids'";
    assert_eq!(session.text(health).await?, "ok");
    send(&session, "with an id that was drawn before").await?;
    let relay = Reader::with(Session::superuser(&cluster, "postgres").await?, "default");
    assert_eq!(relay.drained().await?, ["with an id that was drawn before"]);
    Ok(())
}

/// I4: the test writes by hand what a restore into a younger cluster contains: the cursor and the
/// effects have transaction ids that this cluster has not reached. Relays fail until
/// `idem_repair_relays()` has run, and no effect is lost.
#[tokio::test]
async fn i4_relay_of_younger_cluster_fails_until_repaired() -> Result<()> {
    let db = Database::with_idem("younger").await?;
    let session = db.connect().await?;
    let relay = Reader::of(&db, "default").await?;
    for says in ["acknowledged 1", "acknowledged 2"] {
        send(&session, says).await?;
        assert_eq!(relay.drained().await?, [says]);
    }
    for says in ["waits 1", "waits 2"] {
        send(&session, says).await?;
    }
    session
        .run("SELECT idem_create_relay('gone'); SELECT idem_drop_relay('gone')")
        .await?;
    session
        .run(
            "DO $$ DECLARE slice integer; ahead bigint := 1000000000; BEGIN \
             FOR slice IN 0 .. 3 LOOP \
                 EXECUTE format('UPDATE idem.outbox_%s \
                                 SET tx = (tx::text::bigint + $1)::text::xid8', slice) USING \
                                 ahead; \
             END LOOP; \
             UPDATE idem.progress_0 \
             SET snapshot_from = format('%s:%s:', \
                     pg_snapshot_xmax(snapshot_from)::text::bigint + ahead - 1, \
                     pg_snapshot_xmax(snapshot_from)::text::bigint + ahead - 1)::pg_snapshot; \
             END $$",
        )
        .await?;

    // The restore does not affect producers, so they record effects before the repair.
    send(&session, "recorded before the repair").await?;
    let refused = relay
        .session
        .refused("SELECT * FROM idem_relay_next('default')")
        .await?;
    assert_eq!(refused.sqlstate, "55000", "{refused:?}");
    assert!(refused.hint.contains("idem_repair_relays()"), "{refused:?}");
    let health = "SELECT status FROM idem_health() WHERE check_name = 'transaction ids'";
    assert_eq!(session.text(health).await?, "critical");
    assert_eq!(
        session.text("SELECT idem.relays_holding(0)").await?,
        "{default}",
        "a cursor that is ahead of this cluster holds every effect"
    );

    session.run("SELECT idem_repair_relays()").await?;
    assert_eq!(session.text(health).await?, "ok");
    send(&session, "recorded after the repair").await?;
    let mut says = relay.drained().await?;
    says.retain(|says| !says.starts_with("acknowledged"));
    assert_eq!(
        says,
        [
            "waits 1",
            "waits 2",
            "recorded before the repair",
            "recorded after the repair"
        ]
    );
    assert_eq!(
        session.text("SELECT count(*) FROM idem.delayed").await?,
        "0",
        "no effect is delayed for the dropped relay"
    );
    Ok(())
}

/// I4: CREATE EXTENSION creates the relay `default`, and the dump contains a later state of this
/// relay. The restored database must have the later state.
#[tokio::test]
async fn i4_restore_keeps_cursors_and_revives_no_dropped_relay() -> Result<()> {
    let db = Database::with_idem("dumped").await?;
    let session = db.connect().await?;
    // Repeat until the row of the new relay is the first row of the table, before the row of the
    // dropped relay. The new row can take the place of a dead row only when no snapshot sees the
    // dead row.
    until(
        "the new relay precedes the dropped relay in the table",
        async || {
            session.run("SELECT idem_drop_relay('default')").await?;
            session.run("VACUUM (INDEX_CLEANUP on) idem.relay").await?;
            session
                .run("SELECT idem_create_relay('default', 2, from_oldest => true)")
                .await?;
            Ok(session
                .text("SELECT dropped_at IS NULL FROM idem.relay LIMIT 1")
                .await?
                == "t")
        },
    )
    .await?;
    for says in ["acknowledged", "waits"] {
        send_key(&session, "k", says).await?;
    }
    let mut partition = 0;
    for n in 0..2 {
        if Reader::of(&db, "default")
            .await?
            .partition(n)
            .limit(1)
            .next()
            .await?
            .is_some_and(|b| b.says() == ["acknowledged"])
        {
            partition = n;
        }
    }
    let ack = "SELECT idem_relay_ack('default', partition, pos) FROM idem.progress \
               WHERE leased_until IS NOT NULL";
    session.run(ack).await?;

    let restored = Database::empty("restored").await?;
    let dump = db.cluster().run("pg_dump", [db.name()], &[])?;
    db.cluster().psql(restored.name(), &dump)?;
    let session = restored.connect().await?;
    session.run("SELECT idem_finish_restore()").await?;
    let relays = "SELECT relay, partition FROM idem.relays ORDER BY partition";
    assert_eq!(
        restored.connect().await?.text(relays).await?,
        "default|0\ndefault|1"
    );
    let reader = Reader::of(&restored, "default").await?.partition(partition);
    assert_eq!(reader.drained().await?, ["waits"]);
    Ok(())
}
