//! Tests of a batch whose claims are inserted together. Another session writes after the batch has
//! looked at all of its messages.

use std::sync::Arc;

use anyhow::Result;
use idem_testkit::presence::until_none;
use idem_testkit::ring::{make_due, rotate};
use idem_testkit::{Database, Pause, Session};
use tokio::task::JoinHandle;

use super::claims::start;

/// A batch of the messages `m 0` to `m 9`. The second message of the array is `m 9`, so the order
/// of the results is not that of the ids.
const BATCH: &str = "SELECT idem_try_claim_batch(
     ARRAY['m 0', 'm 9', 'm 1', 'm 2', 'm 3', 'm 4', 'm 5', 'm 6', 'm 7', 'm 8'], 'orders')";
const ALL: &str = "{t,t,t,t,t,t,t,t,t,t}";
const ALL_BUT_9: &str = "{t,f,t,t,t,t,t,t,t,t}";

/// Acquires a message of the batch.
const ACQUIRE: &str = "SELECT outcome FROM idem_acquire('m 9', 'orders', '1 hour')";

/// The number of claims of the batch, and the number of their rows.
const CLAIMS: &str = "SELECT count(DISTINCT id) || ' of ' || count(*)
     FROM idem.inbox_standard_0 WHERE id LIKE 'm %'";

/// Returns the statement that claims a batch of uuids, in the order of their numbers from 1. Its
/// results are the numbers of the messages that it did not get, and the number of all messages.
fn numbered_batch(messages: u32) -> String {
    format!(
        "SELECT string_agg(n::text, ',') FILTER (WHERE NOT claimed), count(*)
           FROM unnest(idem_try_claim_uuid_batch(
                    ARRAY(SELECT lpad(n::text, 32, '0')::uuid
                            FROM generate_series(1, {messages}) n), 'orders'))
                WITH ORDINALITY AS t (claimed, n)"
    )
}

/// A database without pending messages: in such a database the claims of a batch are inserted
/// together.
struct Fixture {
    db: Database,
    session: Session,
    other: Session,
}

impl Fixture {
    async fn new(name: &str) -> Result<Self> {
        let db = Database::without_worker(name).await?;
        let (session, other) = (db.connect().await?, db.connect().await?);
        session
            .run("SELECT idem.intern_destination('orders')")
            .await?;
        until_none(&session).await?;
        Ok(Fixture { db, session, other })
    }

    /// Starts a batch that pauses at `point`, and waits until it is there. The session leaves out a
    /// rule.
    async fn batch_paused_at(&self, point: &str, left_out: &str) -> Result<PausedBatch> {
        let batch = self.db.connect().await?;
        batch
            .run(&format!("SET idem.leave_out = '{left_out}'"))
            .await?;
        let pause = Pause::hold(&self.db, point).await?;
        pause.arm(&batch).await?;
        let pid = batch.pid().await?;
        let result = start(batch, format!("BEGIN; {BATCH}; COMMIT"));
        pause.until_reached(pid).await?;
        Ok(PausedBatch { pause, pid, result })
    }
}

struct PausedBatch {
    pause: Pause,
    pid: i32,
    result: JoinHandle<Result<String>>,
}

/// I1: another session has claimed a message of the batch and is still open. The batch waits for
/// its end.
#[tokio::test]
async fn i1_batch_waits_for_a_claim_made_after_its_look_ups() -> Result<()> {
    for (end, result) in [("COMMIT", ALL_BUT_9), ("ROLLBACK", ALL)] {
        let fixture = Fixture::new("batch_waits").await?;
        let batch = fixture.batch_paused_at("batch: before insert", "").await?;
        fixture
            .other
            .run("BEGIN; SELECT idem_try_claim('m 9', 'orders')")
            .await?;
        batch.pause.release().await?;
        fixture.db.until_blocked(batch.pid).await?;
        fixture.other.run(end).await?;
        assert_eq!(batch.result.await??, result, "{end}");
        assert_eq!(fixture.session.text(CLAIMS).await?, "10 of 10", "{end}");
    }
    Ok(())
}

/// I1, I3: another session has claimed a message of the batch and has committed. The effects of the
/// message are those that this session recorded.
#[tokio::test]
async fn i1_batch_finds_a_claim_committed_after_its_look_ups() -> Result<()> {
    let fixture = Fixture::new("batch_finds").await?;
    let batch = fixture.batch_paused_at("batch: before insert", "").await?;
    let claim = r#"BEGIN;
                   SELECT idem_try_claim('m 9', 'orders');
                   SELECT idem_record_effects('m 9', 'orders', '[{"topic": "t", "payload": 9}]');
                   COMMIT"#;
    fixture.other.run(claim).await?;
    batch.pause.release().await?;
    assert_eq!(batch.result.await??, ALL_BUT_9);
    assert_eq!(fixture.session.text(CLAIMS).await?, "10 of 10");
    let effects = "SELECT convert_from(payload, 'UTF8') FROM idem_effects('m 9', 'orders')";
    assert_eq!(fixture.session.text(effects).await?, "9");
    Ok(())
}

/// The broken variant: a batch that keeps its rows after a conflict claims a message twice.
#[tokio::test]
async fn i1_batch_that_ignores_a_conflict_is_detected() -> Result<()> {
    let fixture = Fixture::new("batch_conflict").await?;
    let batch = fixture
        .batch_paused_at("batch: before insert", "batch: conflict")
        .await?;
    let claim = "SELECT idem_try_claim('m 9', 'orders')";
    assert_eq!(fixture.other.text(claim).await?, "t");
    batch.pause.release().await?;
    assert_eq!(batch.result.await??, ALL);
    assert_ne!(fixture.session.text(CLAIMS).await?, "10 of 10");
    Ok(())
}

/// I1: two batches have looked at the same messages. The second batch takes its rows back and waits
/// for the first, so there is no deadlock.
#[tokio::test]
async fn i1_second_of_two_batches_waits_for_the_first() -> Result<()> {
    let fixture = Fixture::new("two_batches").await?;
    let second = fixture.batch_paused_at("batch: before insert", "").await?;
    let first = fixture
        .batch_paused_at("batch: before second look", "")
        .await?;
    second.pause.release().await?;
    fixture.db.until_blocked(second.pid).await?;
    first.pause.release().await?;
    assert_eq!(first.result.await??, ALL);
    assert_eq!(second.result.await??, "{f,f,f,f,f,f,f,f,f,f}");
    assert_eq!(fixture.session.text(CLAIMS).await?, "10 of 10");
    Ok(())
}

/// I4: a process acquires a message of the batch after the look-ups. The batch finds the lease, and
/// takes all of its claims back.
#[tokio::test]
async fn i4_batch_finds_a_lease_that_begins_after_its_look_ups() -> Result<()> {
    let fixture = Fixture::new("batch_lease").await?;
    let batch = fixture.batch_paused_at("batch: before insert", "").await?;
    assert_eq!(fixture.other.text(ACQUIRE).await?, "acquired");
    batch.pause.release().await?;
    let refused = format!("{:#}", batch.result.await?.unwrap_err());
    assert!(refused.contains("55P03"), "{refused}");
    assert_eq!(fixture.session.text(CLAIMS).await?, "0 of 0");
    Ok(())
}

/// The broken variant: a batch that does not look again claims a message with a lease.
#[tokio::test]
async fn i4_batch_that_does_not_look_again_is_detected() -> Result<()> {
    let fixture = Fixture::new("batch_blind").await?;
    let batch = fixture
        .batch_paused_at("batch: before insert", "batch: second look")
        .await?;
    assert_eq!(fixture.other.text(ACQUIRE).await?, "acquired");
    batch.pause.release().await?;
    assert_eq!(batch.result.await??, ALL);
    Ok(())
}

/// I4: a process asks for a lease while the claims of the batch are inserted and not committed. It
/// does not get the lease.
#[tokio::test]
async fn i4_inserted_claims_of_a_batch_prevent_a_lease() -> Result<()> {
    let fixture = Fixture::new("batch_then_lease").await?;
    let batch = fixture
        .batch_paused_at("batch: before second look", "")
        .await?;
    assert_eq!(fixture.other.text(ACQUIRE).await?, "in_progress");
    batch.pause.release().await?;
    assert_eq!(batch.result.await??, ALL);
    assert_eq!(fixture.session.text(CLAIMS).await?, "10 of 10");
    Ok(())
}

/// I4: a process has written its lease, and the index of the pending messages does not have it yet.
/// The batch claims its messages one by one, and the process then finds the claim.
#[tokio::test]
async fn i4_lease_that_is_being_written_finds_the_claim() -> Result<()> {
    let fixture = Fixture::new("batch_and_lease").await?;
    let batch = fixture.batch_paused_at("batch: before insert", "").await?;
    let leaser = fixture.db.connect().await?;
    let pid = leaser.pid().await?;
    let written = Pause::hold(&fixture.db, "insert: before index").await?;
    written.arm(&leaser).await?;
    let lease = start(leaser, ACQUIRE);
    written.until_reached(pid).await?;
    batch.pause.release().await?;
    assert_eq!(batch.result.await??, ALL);
    written.release().await?;
    assert_eq!(lease.await??, "duplicate");
    assert_eq!(fixture.session.text(CLAIMS).await?, "10 of 10");
    Ok(())
}

/// I2: a batch is cancelled while its claims are inserted. The block that catches the error is
/// rolled back, and its transaction continues.
#[tokio::test]
async fn i2_cancelled_batch_leaves_no_claim() -> Result<()> {
    let fixture = Fixture::new("batch_cancelled").await?;
    let pause = Pause::hold(&fixture.db, "batch: before second look").await?;
    let batch = Arc::new(fixture.db.connect().await?);
    pause.arm(&batch).await?;
    let pid = batch.pid().await?;
    batch
        .run("CREATE TEMP TABLE kept (name text); BEGIN; SELECT idem_try_claim('before', 'orders')")
        .await?;
    let claims = Arc::clone(&batch);
    let block = format!(
        "DO $$
         BEGIN
             INSERT INTO kept VALUES ('before');
             BEGIN
                 INSERT INTO kept VALUES ('in the block');
                 PERFORM {};
                 INSERT INTO kept VALUES ('not cancelled');
             EXCEPTION WHEN query_canceled THEN
                 INSERT INTO kept VALUES ('cancelled');
             END;
         END $$",
        BATCH.trim_start_matches("SELECT ")
    );
    let result = tokio::spawn(async move { claims.run(&block).await });
    pause.until_reached(pid).await?;
    let cancel = format!("SELECT pg_cancel_backend({pid})");
    fixture.session.run(&cancel).await?;
    result.await??;
    pause.release().await?;
    let kept = "SELECT string_agg(name, ', ' ORDER BY name) FROM kept";
    assert_eq!(batch.text(kept).await?, "before, cancelled");
    assert_eq!(batch.text(CLAIMS).await?, "0 of 0");
    assert_eq!(batch.text(BATCH).await?, ALL);
    batch.run("COMMIT").await?;
    assert_eq!(fixture.session.text(CLAIMS).await?, "10 of 10");
    let before = "SELECT idem_is_claimed('before', 'orders')";
    assert_eq!(fixture.session.text(before).await?, "t");
    Ok(())
}

/// I1: the claims of 300 messages are inserted in several steps. The key of the last one was
/// claimed after the look-ups.
#[tokio::test]
async fn i1_conflict_at_the_last_key_takes_all_claims_back() -> Result<()> {
    let fixture = Fixture::new("batch_last").await?;
    let batch = fixture.db.connect().await?;
    let pause = Pause::hold(&fixture.db, "batch: before insert").await?;
    pause.arm(&batch).await?;
    let pid = batch.pid().await?;
    let result = start(batch, numbered_batch(300));
    pause.until_reached(pid).await?;
    let last = "SELECT idem_try_claim(lpad('300', 32, '0')::uuid, 'orders')";
    assert_eq!(fixture.other.text(last).await?, "t");
    pause.release().await?;
    assert_eq!(result.await??, "300|300");
    let rows = "SELECT count(*), count(DISTINCT key) FROM idem.inbox_standard_0";
    assert_eq!(fixture.session.text(rows).await?, "300|300");
    Ok(())
}

/// I1: a batch writes two slices, because it began while the ring was opening. A message was
/// claimed after the rotation, so its key is only in the second of these slices. The batch takes
/// its claims back from both slices.
#[tokio::test]
async fn i1_conflict_in_the_second_slice_empties_the_first() -> Result<()> {
    let fixture = Fixture::new("batch_slices").await?;
    let open = fixture.db.connect().await?;
    open.run("BEGIN; SELECT idem_try_claim('open', 'orders')")
        .await?;
    make_due(&fixture.session, "standard").await?;
    assert_eq!(rotate(&fixture.session, "standard").await?, "opened");
    // The rotation waits for the transactions of this moment, and not for the batch.
    assert_eq!(rotate(&fixture.session, "standard").await?, "waiting");
    let batch = fixture.batch_paused_at("batch: before insert", "").await?;
    open.run("ROLLBACK").await?;
    assert_eq!(rotate(&fixture.session, "standard").await?, "rotated");
    let claim = "SELECT idem_try_claim('m 9', 'orders')";
    assert_eq!(fixture.other.text(claim).await?, "t");
    batch.pause.release().await?;
    assert_eq!(batch.result.await??, ALL_BUT_9);
    let rows = "SELECT (SELECT string_agg(id, ',' ORDER BY id) FROM idem.inbox_standard_0),
                       (SELECT count(*) FROM idem.inbox_standard_1)";
    assert_eq!(
        fixture.session.text(rows).await?,
        "m 0,m 1,m 2,m 3,m 4,m 5,m 6,m 7,m 8|10"
    );
    Ok(())
}

/// I1: another session claims a message of the second group of a batch after its look-up. The
/// claims of the first group stay, and the rest of the batch is claimed one by one.
#[tokio::test]
async fn i1_conflict_in_the_second_group_keeps_the_first() -> Result<()> {
    let fixture = Fixture::new("batch_group").await?;
    let batch = fixture.db.connect().await?;
    let first = Pause::hold(&fixture.db, "batch: before insert").await?;
    let inserted = Pause::hold(&fixture.db, "batch: before second look").await?;
    batch
        .run("SET idem.pause_at = 'batch: before insert, batch: before second look'")
        .await?;
    let pid = batch.pid().await?;
    let result = start(batch, numbered_batch(3000));
    first.until_reached(pid).await?;
    first.release().await?;
    inserted.until_reached(pid).await?;
    let second = Pause::hold(&fixture.db, "batch: before insert").await?;
    inserted.release().await?;
    second.until_reached(pid).await?;
    let claim = "SELECT idem_try_claim(lpad('2000', 32, '0')::uuid, 'orders')";
    assert_eq!(fixture.other.text(claim).await?, "t");
    second.release().await?;
    assert_eq!(result.await??, "2000|3000");
    // The writers are the subtransaction of the first group, the transaction of the batch, and the
    // other session.
    let rows = "SELECT count(*), count(DISTINCT key), count(DISTINCT xmin::text)
                  FROM idem.inbox_standard_0";
    assert_eq!(fixture.session.text(rows).await?, "3000|3000|3");
    Ok(())
}
