//! Tests of I5: the effects of a transaction that commits late are delivered after its commit, and
//! they delay no other effect until then.

use anyhow::Result;
use idem_testkit::{Database, Session, until};

use super::reader::{Reader, send};

const NOTHING: [&str; 0] = [];

/// The session of the late transaction, a session of other transactions, and a relay.
struct Fixture {
    db: Database,
    late: Session,
    other: Session,
    relay: Reader,
}

async fn fixture() -> Result<Fixture> {
    let db = Database::with_idem("late").await?;
    Ok(Fixture {
        late: db.connect().await?,
        other: db.connect().await?,
        relay: Reader::of(&db, "default").await?,
        db,
    })
}

/// I5: the effect of a transaction gets its number first, and the transaction commits last. The
/// effect is delivered and delays no other effect.
#[tokio::test]
async fn i5_late_commit_is_delivered_and_delays_no_effect() -> Result<()> {
    let s = fixture().await?;
    s.late.run("BEGIN").await?;
    send(&s.late, "late").await?;
    send(&s.other, "second").await?;
    assert_eq!(s.relay.drained().await?, ["second"]);
    send(&s.other, "third").await?;
    assert_eq!(
        s.relay.drained().await?,
        ["third"],
        "a second batch does not wait for the late effect either"
    );
    s.late.run("COMMIT").await?;
    assert_eq!(s.relay.drained().await?, ["late"]);
    assert_eq!(s.relay.drained().await?, NOTHING);
    Ok(())
}

/// I5: `lag_messages` includes a late effect, although the number of the effect is below the cursor
/// of the relay. The relay has acknowledged only a part of the effects between its two snapshots.
#[tokio::test]
async fn i5_late_effect_below_cursor_of_open_pair_counts_as_lag() -> Result<()> {
    let s = fixture().await?;
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
    assert_eq!(
        s.other.text(lag).await?,
        "2",
        "the late effect and the second effect"
    );
    let batch = relay.batch().await?;
    assert_eq!(batch.says(), ["second"]);
    relay.ack(batch.token).await?;
    assert_eq!(s.other.text(lag).await?, "1", "the late effect");
    assert_eq!(relay.drained().await?, ["late"]);
    assert_eq!(s.other.text(lag).await?, "0");
    Ok(())
}

/// I5: a transaction begins after the newer snapshot of the relay, and its effect gets its number
/// before the relay reads the last number. The effect counts as lag, although its number is below
/// the cursor of the relay.
#[tokio::test]
async fn i5_young_effect_below_cursor_of_open_pair_counts_as_lag() -> Result<()> {
    let s = fixture().await?;
    let relay = s.relay.limit(1);
    send(&s.other, "seen").await?;
    send(&s.other, "young").await?;
    let batch = relay.batch().await?;
    relay.ack(batch.token).await?;
    let lag = |snapshot_to: &str, seq_after: i32| {
        format!(
            "SELECT (idem.lag(jsonb_populate_record(p, jsonb_build_object(
                         'snapshot_to', {snapshot_to}, 'floor_to', 1, 'seq_after', {seq_after})),
                         1)).messages
               FROM idem.relay r, idem.progress_of(r, 0) p"
        )
    };
    let before_young =
        "(SELECT o.tx::text || ':' || o.tx || ':' FROM idem.outbox_row o WHERE o.seq = 2)";
    assert_eq!(s.other.text(&lag(before_young, 2)).await?, "1");
    assert_eq!(
        s.other.text(&lag("p.snapshot_to", 2)).await?,
        "0",
        "the snapshot sees the effect"
    );
    Ok(())
}

#[tokio::test]
async fn i5_effect_recorded_long_after_its_xid_is_delivered() -> Result<()> {
    let s = fixture().await?;
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

/// I5: the xmax of a snapshot is one above the newest transaction that has *completed*. A running
/// transaction with an id at or above xmax is not in the list of the snapshot, and its effects must
/// still be delivered.
#[tokio::test]
async fn i5_transaction_above_xmax_of_snapshot_is_delivered() -> Result<()> {
    let s = fixture().await?;
    // Another database of this server can complete a transaction in between. The late transaction
    // is then below xmax, and the test repeats the attempt.
    until(
        "a batch is leased while the late transaction runs above xmax",
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

/// I5: the effects of a savepoint are delivered with the transaction, or never when the savepoint
/// is rolled back.
#[tokio::test]
async fn i5_effects_of_savepoints_follow_their_transaction() -> Result<()> {
    let s = fixture().await?;
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
async fn i5_prepared_transaction_is_delivered_after_its_commit() -> Result<()> {
    let s = fixture().await?;
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

/// I4: a relay records an effect in the transaction in which it leases a batch. A snapshot of
/// PostgreSQL does not list the transaction that takes it as running. The effect must still be
/// delivered.
#[tokio::test]
async fn i4_effect_recorded_with_the_lease_is_delivered() -> Result<()> {
    let s = fixture().await?;
    send(&s.other, "cause").await?;
    s.relay
        .session
        .run("BEGIN; SELECT pg_current_xact_id()")
        .await?;
    // The transaction id of the relay is now below the newest completed transaction id.
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
async fn i5_new_relay_reads_effects_committed_after_its_creation() -> Result<()> {
    let s = fixture().await?;
    send(&s.other, "before").await?;
    s.late.run("BEGIN").await?;
    send(&s.late, "late").await?;
    s.other
        .run(
            "SELECT idem_create_relay('young'); \
             SELECT idem_create_relay('old', from_oldest => true)",
        )
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
