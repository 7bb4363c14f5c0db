//! I11: the rotation of pending messages delays no claim, and all functions on a message take their
//! locks in the same order, so they do not deadlock.

use std::time::{Duration, Instant};

use anyhow::Result;
use idem_testkit::{DEADLINE, Database, until};

use super::fencing::acquire;

/// I11: while a maintainer waits for a lock on a table of pending messages, it holds no lock on the
/// other table. Otherwise claims would wait for the maintainer or deadlock with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i11_rotation_waits_for_no_lock_while_it_holds_one() -> Result<()> {
    // The worker would rotate the tables before the reader locks one of them, and autovacuum would
    // remove the dead versions. Then no rotation is left for this test.
    let db = super::rotation::database("no_wait").await?;
    let (session, reader, observer) = (
        db.connect().await?,
        db.connect().await?,
        db.connect().await?,
    );
    super::rotation::churn(&session, 0).await?;
    // The reader locks the table that is not current, as a dump does. The rotation can then lock
    // only the current table.
    let other = "SELECT 1 - current FROM idem.pending_rotation";
    let other = session.text(other).await?;
    reader
        .run(&format!(
            "BEGIN; LOCK TABLE idem.pending_{other} IN ACCESS SHARE MODE"
        ))
        .await?;
    let maintainer = tokio::spawn(async move {
        for _ in 0..20 {
            session.run("SELECT idem.rotate_pending()").await?;
        }
        anyhow::Ok(session)
    });
    let waits_with_a_lock = "SELECT count(*) FROM pg_locks held JOIN pg_locks waits USING (pid)
        WHERE held.relation = ANY ('{idem.pending_0, idem.pending_1}'::regclass[])
        AND held.mode = 'AccessExclusiveLock' AND held.granted
          AND waits.relation = ANY ('{idem.pending_0, idem.pending_1}'::regclass[])
          AND NOT waits.granted";
    while !maintainer.is_finished() {
        assert_eq!(observer.text(waits_with_a_lock).await?, "0");
    }
    let session = maintainer.await??;
    reader.run("COMMIT").await?;
    until(
        "the rotation succeeds after the reader has committed",
        async || {
            session.run("SELECT idem.rotate_pending()").await?;
            Ok(session
                .text("SELECT current FROM idem.pending_rotation")
                .await?
                == other)
        },
    )
    .await
}

/// I11: a large backlog is not copied, whatever the size of the table, because claims would wait
/// for the copy.
#[tokio::test]
async fn i11_large_backlog_is_not_copied() -> Result<()> {
    let db = Database::with_idem("backlog").await?;
    let session = db.connect().await?;
    let receive = "SELECT count(idem_receive(n::text, 'backlog', '1'::jsonb)) \
                   FROM generate_series(1, 40000) n";
    session.run(receive).await?;
    assert_eq!(
        session
            .text("SELECT idem.pending_is_large(r) FROM idem.pending_rotation r")
            .await?,
        "t"
    );
    let began = Instant::now();
    assert_eq!(session.text("SELECT idem.rotate_pending()").await?, "f");
    assert!(
        began.elapsed() < Duration::from_secs(1),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(
        session
            .text("SELECT current FROM idem.pending_rotation")
            .await?,
        "0"
    );
    Ok(())
}

const DISCARD: &str = "SELECT idem_discard('m', 'work')";

/// I4: one session buries a message, a second session discards its older dead letter, and a third
/// session claims the message. The three sessions do not deadlock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i4_bury_discard_and_claim_of_one_message_do_not_deadlock() -> Result<()> {
    let db = Database::with_idem("triangle").await?;
    let (buries, claims, discards) = (
        db.connect().await?,
        db.connect().await?,
        db.connect().await?,
    );
    // Create the dead letter before `idem_forget` and the lease after it, so that the message has
    // both.
    let bury = |token: &str| format!("SELECT idem_bury('m', 'work', {token}, 'payload', 'broken')");
    let token = acquire(&buries, "m", "1 hour").await?;
    buries.run(&bury(&token)).await?;
    buries.run("SELECT idem_try_claim('m', 'work')").await?;
    buries.run("SELECT idem_forget('m', 'work')").await?;
    let token = acquire(&buries, "m", "1 hour").await?;
    assert_eq!(
        buries.text("SELECT count(*) FROM idem.dead_letter").await?,
        "1"
    );

    buries
        .run(&format!("BEGIN; SELECT idem_extend('m', 'work', {token})"))
        .await?;
    let pid = claims.pid().await?;
    let claim =
        tokio::spawn(async move { claims.text("SELECT idem_try_claim('m', 'work')").await });
    db.until_blocked(pid).await?;
    let pid = discards.pid().await?;
    let discard = tokio::spawn(async move {
        let discarded = discards.text(DISCARD).await;
        (discarded, discards)
    });
    db.until_blocked(pid).await?;

    buries.run(&bury(&token)).await?;
    buries.run("COMMIT").await?;
    // Both sessions wait for the same row, and either of them can continue first.
    let claimed = tokio::time::timeout(DEADLINE, claim).await???;
    let (discarded, discards) = tokio::time::timeout(DEADLINE, discard).await??;
    match discarded {
        // `idem_discard` claims the message too if it is first. The message is then a duplicate.
        Ok(discarded) => {
            let outcome = (claimed.as_str(), discarded.as_str());
            assert!([("t", "t"), ("f", "t")].contains(&outcome), "{outcome:?}");
        }
        // The claimer has written its claim, but `idem_discard` has locked the row before it.
        Err(error) => {
            assert!(format!("{error:#}").contains("55P03"), "{error:#}");
            assert_eq!(claimed, "t");
            assert_eq!(discards.text(DISCARD).await?, "t");
        }
    }
    assert_eq!(buries.text("SELECT count(*) FROM idem.inbox").await?, "1");
    assert_eq!(
        buries.text("SELECT count(*) FROM idem.dead_letter").await?,
        "0"
    );
    assert_eq!(buries.text("SELECT count(*) FROM idem.pending").await?, "0");
    Ok(())
}
