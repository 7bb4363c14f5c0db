//! Tests of the rotation of payloads: a slice is truncated only when no message refers to its
//! payloads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use idem_testkit::{Database, Session, until};

use super::{claim, ids, next, receive};

/// Runs one step of the rotation of payloads. A slice with one byte already counts as full. `rest`
/// is the time between the check that a slice is unused and its TRUNCATE. Returns true if a step
/// was done.
async fn rotate(session: &Session, rest: &str) -> Result<bool> {
    Ok(session
        .text(&format!("SELECT idem.rotate_payloads(1, '{rest}')"))
        .await?
        == "t")
}

/// Runs steps of the rotation until no step is left.
async fn rotate_through(session: &Session, rest: &str) -> Result<()> {
    for _ in 0..50 {
        if !rotate(session, rest).await? {
            return Ok(());
        }
    }
    Ok(())
}

async fn sizes(session: &Session) -> Result<String> {
    session
        .text(
            "SELECT string_agg( \
                 (pg_relation_size(format('idem.payload_%s', s)::regclass) > 0)::int::text, '' \
                 ORDER BY s) FROM generate_series(0, 3) s",
        )
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_message_keeps_its_payload_over_all_rotations() -> Result<()> {
    let db = Database::without_worker("bodies").await?;
    let session = db.connect().await?;
    session
        .run(
            "SELECT idem_receive('old', 'mail', '\"old\"'::jsonb, \
             deliver_after => now() + interval '1 day')",
        )
        .await?;
    let mut used = std::collections::BTreeSet::new();
    for round in 0..8 {
        let id = format!("m{round}");
        receive(&session, &id, "").await?;
        used.insert(
            session
                .text("SELECT current FROM idem.payload_rotation")
                .await?,
        );
        assert_eq!(ids(&next(&session, 1).await?), [id.as_str()]);
        assert!(claim(&session, &id).await?);
        for _ in 0..6 {
            rotate(&session, "0").await?;
        }
    }
    assert_eq!(used.len(), 4, "every slice was the current one");
    session
        .run(
            "UPDATE idem.pending_0 SET due_at = clock_timestamp(); \
             UPDATE idem.pending_1 SET due_at = clock_timestamp()",
        )
        .await?;
    // `next` also checks that the payload is unchanged.
    assert_eq!(ids(&next(&session, 10).await?), ["old"]);
    assert!(claim(&session, "old").await?);
    rotate_through(&session, "0").await?;
    let left = sizes(&session).await?;
    ensure!(
        left.matches('1').count() <= 1,
        "at most the current slice contains payloads: {left}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unused_payload_slice_is_emptied_in_a_later_pass() -> Result<()> {
    let db = Database::without_worker("passes").await?;
    let session = db.connect().await?;
    receive(&session, "a", "").await?;
    assert!(rotate(&session, "1 hour").await?, "the slices rotate");
    assert!(claim(&session, "a").await?);
    assert!(
        rotate(&session, "1 hour").await?,
        "the slice is recorded as unused"
    );
    assert!(!rotate(&session, "1 hour").await?);
    assert_eq!(
        sizes(&session).await?,
        "1000",
        "a dump that began before may still read the slice"
    );
    assert!(rotate(&session, "0").await?);
    assert_eq!(sizes(&session).await?, "0000");
    Ok(())
}

/// I4, I11: a receiver that began before the rotation still writes into the old slice, so that
/// slice is not emptied before the receiver has committed. The rotation itself does not wait for
/// the receiver.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i4_open_receiver_keeps_its_payload_slice_from_emptying() -> Result<()> {
    let db = Database::without_worker("writer").await?;
    let (session, writer) = (db.connect().await?, db.connect().await?);
    receive(&session, "a", "").await?;
    writer.run("BEGIN").await?;
    receive(&writer, "b", "").await?;
    assert!(rotate(&session, "0").await?, "the rotation does not wait");
    assert_eq!(
        session
            .text("SELECT current FROM idem.payload_rotation")
            .await?,
        "1"
    );
    assert!(claim(&session, "a").await?);
    rotate_through(&session, "0").await?;
    assert_eq!(
        sizes(&session).await?,
        "1000",
        "the slice of the open receiver stays"
    );
    writer.run("COMMIT").await?;
    rotate_through(&session, "0").await?;
    assert_eq!(ids(&next(&session, 1).await?), ["b"]);
    assert!(claim(&session, "b").await?);
    until("both slices are emptied", async || {
        rotate_through(&session, "0").await?;
        Ok(sizes(&session).await? == "0000")
    })
    .await
}

/// I4: a requeue also writes a payload. A slice that an open requeue may use is not emptied before
/// the requeue has committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i4_open_requeue_keeps_its_payload_slice_from_emptying() -> Result<()> {
    let db = Database::without_worker("requeuer").await?;
    let (session, writer) = (db.connect().await?, db.connect().await?);
    super::without_back_off(&session, 1).await?;
    receive(&session, "a", "").await?;
    let held = next(&session, 1).await?.remove(0);
    super::fail(&session, &held, "broken").await?;
    writer
        .run("BEGIN; SELECT idem_requeue('a', 'mail')")
        .await?;
    assert!(rotate(&session, "0").await?, "the rotation does not wait");
    let unused = "SELECT unused_since[1] FROM idem.payload_rotation";
    for _ in 0..3 {
        rotate(&session, "0").await?;
        assert_eq!(
            session.text(unused).await?,
            "infinity",
            "an open requeue may use the slice"
        );
    }
    writer.run("COMMIT").await?;
    rotate_through(&session, "0").await?;
    assert_eq!(ids(&next(&session, 1).await?), ["a"]);
    Ok(())
}

/// A dump reads by its snapshot, and TRUNCATE would hide rows from that snapshot. A slice is
/// therefore not truncated while a dump has locked it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dump_that_has_begun_finds_every_payload() -> Result<()> {
    let db = Database::without_worker("dumped").await?;
    let (session, dump) = (db.connect().await?, db.connect().await?);
    session
        .run(
            "SELECT idem_receive('w' || n, 'mail', to_jsonb('w' || n), \
             deliver_after => now() + interval '1 day') FROM generate_series(1, 50) n",
        )
        .await?;
    // pg_dump takes its snapshot first, then the locks, and then reads one table after the other.
    dump.run("BEGIN ISOLATION LEVEL REPEATABLE READ").await?;
    assert_eq!(
        dump.text("SELECT count(*) FROM idem.pending_0").await?,
        "50"
    );
    let use_every_slice = async || -> Result<()> {
        for n in 0..4 {
            receive(&session, &format!("x{n}"), "").await?;
            rotate_through(&session, "10 seconds").await?;
        }
        Ok(())
    };
    use_every_slice().await?;
    dump.run(
        "LOCK TABLE idem.payload_0, idem.payload_1, idem.payload_2, idem.payload_3 \
         IN ACCESS SHARE MODE",
    )
    .await?;
    // From here on the locks of the dump prevent the emptying of every slice, even with a `rest` of
    // 0.
    rotate_through(&session, "0").await?;
    let found = "SELECT count(*) FROM idem.pending_0 w \
                 JOIN idem.payload_row b ON b.slice = w.payload_slice AND b.seq = w.seq";
    assert_eq!(dump.text(found).await?, "50");
    dump.run("COMMIT").await?;
    until(
        "the slices that the dump has locked are emptied",
        async || {
            rotate_through(&session, "0").await?;
            Ok(session
                .text("SELECT count(*) FROM idem.payload_row")
                .await?
                .parse::<i64>()?
                <= 60)
        },
    )
    .await?;
    assert_eq!(
        session
            .text(&found.replace("idem.pending_0", "idem.pending"))
            .await?,
        "54"
    );
    Ok(())
}

/// Runs transactions with claims until `stop` is true. Each begins before the one before it ends.
async fn overlap(db: Arc<Database>, stop: Arc<AtomicBool>) -> Result<()> {
    let (mut open, mut other) = (db.connect().await?, db.connect().await?);
    open.run("BEGIN").await?;
    for n in 0.. {
        claim(&open, &format!("overlap{n}")).await?;
        if stop.load(Ordering::Relaxed) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        other.run("BEGIN").await?;
        claim(&other, &format!("other{n}")).await?;
        open.run("COMMIT").await?;
        std::mem::swap(&mut open, &mut other);
    }
    open.run("COMMIT").await
}

/// Without the worker, each pass can run in a new session, which has no list of transactions for
/// the fence yet. The pass waits until the transactions of its list have ended, so the slices are
/// emptied although there is an open transaction with a claim at each moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passes_in_new_sessions_empty_the_payload_slices() -> Result<()> {
    let db = Arc::new(Database::without_worker("new_sessions").await?);
    let session = db.connect().await?;
    receive(&session, "a", "").await?;
    assert!(rotate(&session, "1 hour").await?, "the slices rotate");
    assert!(claim(&session, "a").await?);
    let stop = Arc::new(AtomicBool::new(false));
    let transactions = tokio::spawn(overlap(Arc::clone(&db), Arc::clone(&stop)));
    until("there are transactions with claims", async || {
        let claims = "SELECT idem_is_claimed('other0', 'mail')";
        Ok(session.text(claims).await? == "t")
    })
    .await?;
    for _ in 0..2 {
        db.connect().await?.run("CALL idem_maintain()").await?;
        // As if the time between two steps had passed.
        session
            .run(
                "UPDATE idem.payload_rotation \
                 SET unused_since[1] = unused_since[1] - interval '1 hour'",
            )
            .await?;
    }
    assert_eq!(
        sizes(&session).await?,
        "0000",
        "the first pass finds the slice unused, and the second pass empties it"
    );
    stop.store(true, Ordering::Relaxed);
    transactions.await?
}

/// I11: a pass waits for the transactions that may still write to a slice. It then holds no lock
/// for which a claim, a lease, a receiver or a relay waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i11_pass_at_the_payload_fence_blocks_no_session() -> Result<()> {
    let db = Database::without_worker("at_the_fence").await?;
    let (session, writer, maintainer) = (
        db.connect().await?,
        db.connect().await?,
        db.connect().await?,
    );
    receive(&session, "a", "").await?;
    assert!(rotate(&session, "0").await?, "the slices rotate");
    writer.run("BEGIN").await?;
    receive(&writer, "b", "").await?;
    let pid = maintainer.pid().await?;
    let pass = tokio::spawn(async move { maintainer.run("CALL idem_maintain()").await });
    until("the pass waits at the fence", async || {
        let waits = format!("SELECT wait_event FROM pg_stat_activity WHERE pid = {pid}");
        Ok(session.text(&waits).await? == "Extension")
    })
    .await?;

    session.run("SET lock_timeout = '100ms'").await?;
    assert_eq!(ids(&next(&session, 1).await?), ["a"]);
    let record = r#"SELECT idem_try_record('a', 'mail', '[{"topic": "t", "payload": 1}]')"#;
    assert_eq!(session.text(record).await?, "t");
    let lease = "SELECT outcome FROM idem_acquire('c', 'mail')";
    assert_eq!(session.text(lease).await?, "acquired");
    assert!(receive(&session, "d", "").await?);
    let token = session
        .text("SELECT token FROM idem_relay_next('default')")
        .await?;
    session
        .run(&format!("SELECT idem_relay_ack('default', 0, {token})"))
        .await?;
    session.run("SELECT pg_sleep(1)").await?;
    assert!(!pass.is_finished(), "the pass still waits");
    writer.run("COMMIT").await?;
    pass.await??;
    // The next check is due after a multiple of this time.
    let took = "SELECT look_took < '1 second' FROM idem.payload_rotation \
                WHERE looked_at > '-infinity'";
    assert_eq!(session.text(took).await?, "t", "the wait does not count");
    Ok(())
}

/// A pass that waits at fences changes the current slice of payloads although a receiver is open.
/// Only the check for unused slices waits for the receiver.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payload_slices_rotate_beside_an_open_receiver() -> Result<()> {
    let db = Database::without_worker("open_receiver").await?;
    let (session, writer) = (db.connect().await?, db.connect().await?);
    receive(&session, "a", "").await?;
    assert!(rotate(&session, "0").await?, "the slices rotate");
    writer.run("BEGIN").await?;
    receive(&writer, "b", "").await?;
    receive(&session, "c", "").await?;
    assert_eq!(sizes(&session).await?, "1100", "the next slice is empty");
    session.run("SET statement_timeout = '5s'").await?;
    let step = "SELECT idem.rotate_payloads(1, '0')";
    assert_eq!(session.text(step).await?, "t");
    let current = "SELECT current FROM idem.payload_rotation";
    assert_eq!(session.text(current).await?, "2");
    writer.run("COMMIT").await
}

/// I11: a slice is in use again when it is to be emptied. The step ends there, so that it does not
/// hold the lock on the slice while it waits at the fence of the next check.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i11_step_ends_when_a_payload_slice_is_used_again() -> Result<()> {
    let db = Database::without_worker("used_again").await?;
    let (session, writer) = (db.connect().await?, db.connect().await?);
    for id in ["a", "b"] {
        receive(&session, id, "").await?;
        assert!(rotate(&session, "0").await?, "the slices rotate");
    }
    assert_eq!(sizes(&session).await?, "1100");
    session
        .run(
            "UPDATE idem.payload_rotation SET unused_since[1] = clock_timestamp(); \
             SET statement_timeout = '5s'",
        )
        .await?;
    writer.run("BEGIN").await?;
    receive(&writer, "c", "").await?;
    let step = "SELECT idem.rotate_payloads(1, '0')";
    assert_eq!(session.text(step).await?, "t");
    let unused = "SELECT unused_since[1] FROM idem.payload_rotation";
    assert_eq!(session.text(unused).await?, "infinity");
    writer.run("COMMIT").await
}
