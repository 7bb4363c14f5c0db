//! Tests of I4, I5 and I12: a sequence that has fallen behind its tables, as after a switch-over by
//! logical replication, which does not replicate sequences. Each test sets the sequence back by
//! hand.

use anyhow::Result;
use idem_testkit::{Database, Session};

use super::reader::{Reader, send};

const SEND: &str = "SELECT idem_send('t', '\"hidden\"')";
const NEXT: &str = "SELECT * FROM idem_relay_next('default')";

async fn health(session: &Session) -> Result<String> {
    session
        .text("SELECT status FROM idem_health() WHERE check_name = 'sequences'")
        .await
}

/// Checks that the statement fails with 58000, and that the hint names the repair.
async fn assert_refused(session: &Session, sql: &str) -> Result<()> {
    let refused = session.refused(sql).await?;
    assert_eq!(refused.sqlstate, "58000", "{sql}: {refused:?}");
    assert!(refused.hint.contains("idem_repair_relays()"), "{refused:?}");
    Ok(())
}

/// Delivers some effects, so that the floor of the relay is above 0, and leaves one waiting.
async fn deliver_some(session: &Session, relay: &Reader) -> Result<()> {
    for number in 1..=5 {
        send(session, &format!("before {number}")).await?;
        assert_eq!(relay.drained().await?, [format!("before {number}")]);
    }
    send(session, "waits").await?;
    Ok(())
}

/// I5: recordings, relays and health report a sequence of the outbox that is below the floor of a
/// relay. After the repair every effect is delivered.
#[tokio::test]
async fn i5_sequence_behind_a_floor_fails_until_repaired() -> Result<()> {
    let db = Database::with_idem("seq_back").await?;
    let session = db.connect().await?;
    let relay = Reader::of(&db, "default").await?;
    deliver_some(&session, &relay).await?;
    session.run("SELECT setval('idem.outbox_seq', 2)").await?;

    assert_refused(&session, SEND).await?;
    let other = db.connect().await?;
    assert_refused(&other, SEND).await?;
    assert_refused(&relay.session, NEXT).await?;
    assert_eq!(health(&session).await?, "critical");

    session.run("SELECT idem_repair_relays()").await?;
    assert_eq!(health(&session).await?, "ok");
    send(&session, "after").await?;
    let mut says = relay.drained().await?;
    says.retain(|says| !says.starts_with("before"));
    assert_eq!(says, ["waits", "after"]);
    Ok(())
}

/// I5: an idle relay reports the sequence too: without the check it would see no effect above its
/// floor and return no row.
#[tokio::test]
async fn i5_idle_relay_fails_behind_its_floor() -> Result<()> {
    let db = Database::with_idem("seq_idle").await?;
    let session = db.connect().await?;
    let relay = Reader::of(&db, "default").await?;
    deliver_some(&session, &relay).await?;
    assert_eq!(relay.drained().await?, ["waits"]);
    session.run("SELECT setval('idem.outbox_seq', 2)").await?;
    assert_refused(&relay.session, NEXT).await
}

/// I5: rows of an apply worker carry floors that this server has not read. The first recording
/// after them fails, so no effect is hidden while the relays are stopped.
#[tokio::test]
async fn i5_floor_that_arrives_as_a_row_stops_recordings() -> Result<()> {
    let db = Database::with_idem("seq_rows").await?;
    let session = db.connect().await?;
    send(&session, "local").await?;
    session
        .run(
            "ALTER TABLE idem.progress_0 DISABLE TRIGGER note_load; \
             INSERT INTO idem.progress_0 (relay, partition, floor_from, snapshot_from) \
             VALUES (1, 0, 500, pg_current_snapshot())",
        )
        .await?;
    assert_refused(&session, SEND).await?;
    assert_eq!(health(&session).await?, "critical");
    session.run("SELECT idem_repair_relays()").await?;
    send(&session, "after").await?;
    let relay = Reader::of(&db, "default").await?;
    assert_eq!(relay.drained().await?, ["after"]);
    Ok(())
}

/// I5: after a restart shared memory is empty, and the first recording reads the floors.
#[tokio::test]
async fn i5_first_recording_after_a_start_reads_the_floors() -> Result<()> {
    let mut cluster = idem_cluster::Cluster::builder(&idem_cluster::Install::from_env()?)
        .name("seq-start")
        .setting("shared_buffers", "32MB")
        .setting("idem.databases", "none")
        .start()?;
    let session = Session::in_database_with_idem(&cluster, "shop").await?;
    let relay = Reader::with(Session::superuser(&cluster, "shop").await?, "default");
    deliver_some(&session, &relay).await?;
    session.run("SELECT setval('idem.outbox_seq', 2)").await?;
    cluster.kill()?;
    cluster.start()?;
    let session = Session::superuser(&cluster, "shop").await?;
    assert_refused(&session, SEND).await
}

/// I5: the floor of an extension that was dropped does not stop the next one, whose sequence begins
/// at 1.
#[tokio::test]
async fn i5_new_extension_begins_without_a_floor() -> Result<()> {
    let db = Database::with_idem("seq_new").await?;
    let session = db.connect().await?;
    let relay = Reader::of(&db, "default").await?;
    deliver_some(&session, &relay).await?;
    session
        .run("DROP EXTENSION idem; CREATE EXTENSION idem")
        .await?;
    deliver_some(&session, &relay).await?;
    assert_eq!(health(&session).await?, "ok");
    Ok(())
}

/// I4: an effect above the sequence's value would not be in the pair of snapshots of any batch.
#[tokio::test]
async fn i4_effect_above_the_sequence_is_not_skipped() -> Result<()> {
    let db = Database::with_idem("seq_above").await?;
    let session = db.connect().await?;
    let relay = Reader::of(&db, "default").await?;
    for number in 1..=5 {
        send(&session, &format!("waits {number}")).await?;
    }
    session.run("SELECT setval('idem.outbox_seq', 2)").await?;
    assert_refused(&relay.session, NEXT).await?;
    assert_eq!(health(&session).await?, "critical");
    session.run("SELECT idem_repair_relays()").await?;
    assert_eq!(
        relay.drained().await?,
        ["waits 1", "waits 2", "waits 3", "waits 4", "waits 5"]
    );
    Ok(())
}

/// I4: progress with a lower pos than the newest row would never be the newest: each poll would
/// lease the same batch again.
#[tokio::test]
async fn i4_progress_behind_its_newest_row_fails_until_repaired() -> Result<()> {
    let db = Database::with_idem("pos_back").await?;
    let session = db.connect().await?;
    let relay = Reader::of(&db, "default").await?;
    deliver_some(&session, &relay).await?;
    session.run("TRUNCATE idem.progress_1").await?;
    session
        .run("UPDATE idem.progress_0 SET pos = pos + 1000")
        .await?;
    assert_refused(&relay.session, NEXT).await?;
    assert_eq!(health(&session).await?, "critical");
    session.run("SELECT idem_repair_relays()").await?;
    assert_eq!(health(&session).await?, "ok");
    let mut says = relay.drained().await?;
    says.retain(|says| !says.starts_with("before"));
    assert_eq!(says, ["waits"]);
    Ok(())
}

/// I1: a token is higher than the earlier tokens of its message, also if the sequence is not. The
/// holder of an old lease cannot complete the message.
#[tokio::test]
async fn i1_token_rises_although_its_sequence_fell() -> Result<()> {
    let db = Database::with_idem("token_back").await?;
    let session = db.connect().await?;
    let acquire = "SELECT token FROM idem_acquire('m', 'work', '1 hour'::interval)";
    let first: i64 = session.text(acquire).await?.parse()?;
    session
        .run("UPDATE idem.pending_0 SET due_at = now() - interval '1 second'")
        .await?;
    session
        .run("ALTER SEQUENCE idem.lease_token_seq RESTART")
        .await?;
    let second: i64 = session.text(acquire).await?.parse()?;
    assert!(second > first, "token {second} after {first}");
    // The same for idem_next.
    session
        .run("SELECT idem_receive('n', 'work', '{}'::jsonb)")
        .await?;
    let next = "SELECT token FROM idem_next('work', lease => '1 hour'::interval)";
    let first: i64 = session.text(next).await?.parse()?;
    session
        .run("UPDATE idem.pending_0 SET due_at = now() - interval '1 second' WHERE id = 'n'")
        .await?;
    session
        .run("ALTER SEQUENCE idem.lease_token_seq RESTART")
        .await?;
    let second: i64 = session.text(next).await?.parse()?;
    assert!(second > first, "token {second} after {first}");
    Ok(())
}

/// I4: the progress of a dropped relay is kept for a while. A new relay must not continue it.
#[tokio::test]
async fn i4_new_relay_has_an_id_that_no_progress_has() -> Result<()> {
    let db = Database::with_idem("relay_id").await?;
    let session = db.connect().await?;
    session.run("SELECT idem_create_relay('old')").await?;
    send(&session, "read by both").await?;
    let old = Reader::of(&db, "old").await?;
    assert_eq!(old.drained().await?, ["read by both"]);
    session.run("SELECT idem_drop_relay('old')").await?;
    session
        .run("ALTER SEQUENCE idem.relay_id_seq RESTART")
        .await?;
    session
        .run("SELECT idem_create_relay('new', from_oldest => true)")
        .await?;
    let new = Reader::of(&db, "new").await?;
    assert_eq!(new.drained().await?, ["read by both"]);
    Ok(())
}

/// I12: health reports a sequence of received messages that is behind them, and the repair raises
/// it.
#[tokio::test]
async fn i12_sequence_of_received_messages_is_checked() -> Result<()> {
    let db = Database::with_idem("pending_back").await?;
    let session = db.connect().await?;
    for id in ["a", "b", "c"] {
        session
            .run(&format!(
                "SELECT idem_receive('{id}', 'work', '{{}}'::jsonb)"
            ))
            .await?;
    }
    assert_eq!(health(&session).await?, "ok");
    session.run("SELECT setval('idem.pending_seq', 1)").await?;
    assert_eq!(health(&session).await?, "critical");
    session.run("SELECT idem_repair_relays()").await?;
    assert_eq!(health(&session).await?, "ok");
    session
        .run("SELECT idem_receive('d', 'work', '{}'::jsonb)")
        .await
}
