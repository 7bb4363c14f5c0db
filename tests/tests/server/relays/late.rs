//! I5: a transaction that commits late is delivered when it does, and delays nobody until then.

use anyhow::Result;
use idem_tests::harness::{Database, Session, until};

use super::reader::{Reader, send};

const NOTHING: [&str; 0] = [];

/// The late transaction, somebody else, and a relay.
struct Scene {
    db: Database,
    late: Session,
    other: Session,
    relay: Reader,
}

async fn scene() -> Result<Scene> {
    let db = Database::with_idem("late").await?;
    Ok(Scene {
        late: db.connect().await?,
        other: db.connect().await?,
        relay: Reader::of(&db, "default").await?,
        db,
    })
}

#[tokio::test]
async fn i5_who_takes_its_number_first_and_commits_last_is_delivered_and_delays_nobody()
-> Result<()> {
    let s = scene().await?;
    s.late.run("BEGIN").await?;
    send(&s.late, "late").await?;
    send(&s.other, "second").await?;
    assert_eq!(s.relay.drained().await?, ["second"]);
    send(&s.other, "third").await?;
    assert_eq!(
        s.relay.drained().await?,
        ["third"],
        "a second round passes it as well"
    );
    s.late.run("COMMIT").await?;
    assert_eq!(s.relay.drained().await?, ["late"]);
    assert_eq!(s.relay.drained().await?, NOTHING);
    Ok(())
}

/// The relay has acknowledged half of what its pair of snapshots holds.
#[tokio::test]
async fn i5_an_effect_below_the_cursor_of_an_open_pair_counts_as_lag() -> Result<()> {
    let s = scene().await?;
    let relay = s.relay.limit(1);
    let lag = "SELECT lag_messages FROM idem.relays";
    s.late.run("BEGIN").await?;
    send(&s.late, "late").await?;
    send(&s.other, "first").await?;
    send(&s.other, "second").await?;
    let batch = relay.batch().await?;
    assert_eq!(batch.says(), ["first"]);
    relay.ack(batch.token).await?;
    s.late.run("COMMIT").await?;
    assert_eq!(s.other.text(lag).await?, "2", "late and second");
    let batch = relay.batch().await?;
    assert_eq!(batch.says(), ["second"]);
    relay.ack(batch.token).await?;
    assert_eq!(s.other.text(lag).await?, "1", "late");
    assert_eq!(relay.drained().await?, ["late"]);
    assert_eq!(s.other.text(lag).await?, "0");
    Ok(())
}

/// A transaction began after the newer snapshot, and took its number before the ceiling was read.
#[tokio::test]
async fn i5_a_young_effect_below_the_cursor_of_an_open_pair_is_lag() -> Result<()> {
    let s = scene().await?;
    let relay = s.relay.limit(1);
    send(&s.other, "seen").await?;
    send(&s.other, "young").await?;
    let batch = relay.batch().await?;
    relay.ack(batch.token).await?;
    let lag = |snapshot_to: &str, seq_after: i32| {
        format!(
            "SELECT (idem.lag(jsonb_populate_record(p, jsonb_build_object(
                         'snapshot_to', {snapshot_to}, 'floor_to', 1, 'seq_after', {seq_after})), 1)).messages
               FROM idem.relay r, idem.progress_of(r, 0) p"
        )
    };
    let before_young =
        "(SELECT o.tx::text || ':' || o.tx || ':' FROM idem.outbox_row o WHERE o.seq = 2)";
    assert_eq!(s.other.text(&lag(before_young, 2)).await?, "1");
    assert_eq!(
        s.other.text(&lag("p.snapshot_to", 2)).await?,
        "0",
        "the snapshot sees it"
    );
    Ok(())
}

#[tokio::test]
async fn i5_who_has_an_xid_and_records_only_later_is_delivered() -> Result<()> {
    let s = scene().await?;
    s.late.run("BEGIN; SELECT pg_current_xact_id()").await?;
    send(&s.other, "first").await?;
    assert_eq!(s.relay.drained().await?, ["first"]);
    send(&s.late, "late").await?;
    send(&s.other, "third").await?;
    assert_eq!(s.relay.drained().await?, ["third"]);
    s.late.run("COMMIT").await?;
    assert_eq!(s.relay.drained().await?, ["late"]);
    Ok(())
}

/// The snapshot's xmax is one above the newest transaction that has *completed*: who runs above it
/// stands in no list.
#[tokio::test]
async fn i5_who_runs_above_the_xmax_of_the_snapshot_is_delivered() -> Result<()> {
    let s = scene().await?;
    // Another database of this server may complete a transaction in between: then this was the case
    // above, and it is done again.
    until(
        "a batch is leased while the late one runs above xmax",
        async || {
            send(&s.other, "first").await?;
            s.late.run("BEGIN").await?;
            send(&s.late, "late").await?;
            let late_xid = s.late.text("SELECT pg_current_xact_id()").await?;

            s.relay.session.run("BEGIN").await?;
            let batch = s.relay.batch().await?;
            assert_eq!(batch.says(), ["first"]);
            s.relay.ack(batch.token).await?;
            let above =
                format!("SELECT '{late_xid}'::xid8 >= pg_snapshot_xmax(pg_current_snapshot())");
            let above = s.relay.session.text(&above).await? == "t";
            s.relay.session.run("COMMIT").await?;

            s.late.run("COMMIT").await?;
            assert_eq!(s.relay.drained().await?, ["late"]);
            Ok(above)
        },
    )
    .await
}

#[tokio::test]
async fn i5_savepoints_are_delivered_with_their_transaction_or_never() -> Result<()> {
    let s = scene().await?;
    s.late.run("BEGIN; SAVEPOINT kept").await?;
    send(&s.late, "kept").await?;
    s.late.run("RELEASE kept; SAVEPOINT dropped").await?;
    send(&s.late, "dropped").await?;
    s.late.run("ROLLBACK TO dropped").await?;
    send(&s.other, "other").await?;
    assert_eq!(s.relay.drained().await?, ["other"]);
    send(&s.late, "last").await?;
    s.late.run("COMMIT").await?;
    assert_eq!(s.relay.drained().await?, ["kept", "last"]);
    Ok(())
}

#[tokio::test]
async fn i5_a_prepared_transaction_is_delivered_when_it_commits() -> Result<()> {
    let s = scene().await?;
    s.late.run("BEGIN").await?;
    send(&s.late, "prepared").await?;
    s.late.run("PREPARE TRANSACTION 'late'").await?;
    send(&s.other, "other").await?;
    assert_eq!(s.relay.drained().await?, ["other"]);
    send(&s.other, "another").await?;
    assert_eq!(s.relay.drained().await?, ["another"]);
    s.other.run("COMMIT PREPARED 'late'").await?;
    assert_eq!(s.relay.drained().await?, ["prepared"]);

    s.late.run("BEGIN").await?;
    send(&s.late, "taken back").await?;
    s.late.run("PREPARE TRANSACTION 'late'").await?;
    s.other.run("ROLLBACK PREPARED 'late'").await?;
    assert_eq!(s.relay.drained().await?, NOTHING);
    Ok(())
}

/// A snapshot never lists the transaction that takes it.
#[tokio::test]
async fn i4_what_a_relay_records_in_the_transaction_of_its_own_batch_is_delivered() -> Result<()> {
    let s = scene().await?;
    send(&s.other, "cause").await?;
    s.relay
        .session
        .run("BEGIN; SELECT pg_current_xact_id()")
        .await?;
    // Now the relay's xid lies below the newest completed one.
    s.other.run("SELECT pg_current_xact_id()").await?;
    let batch = s.relay.batch().await?;
    assert_eq!(batch.says(), ["cause"]);
    send(&s.relay.session, "consequence").await?;
    s.relay.ack(batch.token).await?;
    s.relay.session.run("COMMIT").await?;
    assert_eq!(s.relay.drained().await?, ["consequence"]);
    Ok(())
}

#[tokio::test]
async fn i5_a_new_relay_sees_what_commits_after_it_was_made() -> Result<()> {
    let s = scene().await?;
    send(&s.other, "before").await?;
    s.late.run("BEGIN").await?;
    send(&s.late, "late").await?;
    s.other
        .run("SELECT idem_create_relay('young'); SELECT idem_create_relay('old', from_oldest => true)")
        .await?;
    send(&s.other, "after").await?;
    s.late.run("COMMIT").await?;
    let young = Reader::of(&s.db, "young").await?;
    let old = Reader::of(&s.db, "old").await?;
    assert_eq!(young.drained().await?, ["late", "after"]);
    assert_eq!(old.drained().await?, ["before", "late", "after"]);
    assert_eq!(s.relay.drained().await?, ["before", "late", "after"]);
    Ok(())
}
