//! Tests of a transaction that looks at its own claim or call while an older transaction waits for
//! it, and of `idem_forget` while the ring is opening. The older transaction entered before a
//! rotation, so its row is in a slice that is sealed now.

use std::sync::Arc;

use anyhow::{Context, Result};
use idem_testkit::ring::{make_due, rotate};
use idem_testkit::{Database, Pause, Session, until};
use tokio::task::JoinHandle;

use super::claims::start;

/// The statements of two sessions that write the same row: a claim, or an event of a call.
struct Writes {
    /// Writes the row in a transaction that was open before the rotation.
    older: &'static str,
    newer: &'static str,
    /// A pause point of the newer session after the insert of its row. Without it the statement of
    /// the newer session ends.
    newer_pauses_at: Option<&'static str>,
}

const CLAIM: &str = "SELECT idem_try_claim('m', 'orders')";
const BEGIN_CALL: &str = "SELECT state FROM idem_begin_call('m', 'orders', 'pay')";

const CLAIMS: Writes = Writes {
    older: CLAIM,
    newer: CLAIM,
    newer_pauses_at: None,
};

/// Two sessions that write the same row. The older session entered while the ring was opening. Its
/// row is in the slice that is sealed now, and it waits in the current slice for the transaction of
/// the newer session.
struct Writers {
    older: JoinHandle<Result<String>>,
    /// Runs the statement of the newer session in an open transaction.
    newer: JoinHandle<Result<String>>,
    /// The pause of the newer session.
    pause: Option<Pause>,
    session: Arc<Session>,
}

impl Writers {
    /// Waits for the end of the newer session's statement, and returns its result.
    async fn first(&mut self) -> Result<String> {
        if let Some(pause) = self.pause.take() {
            pause.release().await?;
        }
        (&mut self.newer).await?
    }
}

/// Starts both sessions.
async fn writers(db: &Database, writes: &Writes) -> Result<Writers> {
    let (maintainer, open, older, newer) = (
        db.connect().await?,
        db.connect().await?,
        db.connect().await?,
        Arc::new(db.connect().await?),
    );
    // The row that was rolled back leaves an index entry, at which the older session pauses when it
    // looks into the slice.
    maintainer
        .run(&format!("BEGIN; {}; ROLLBACK", writes.older))
        .await?;
    maintainer
        .run("SELECT idem_try_claim('warm', 'orders')")
        .await?;
    open.run("BEGIN; SELECT idem_try_claim('open', 'orders')")
        .await?;
    make_due(&maintainer, "standard").await?;
    assert_eq!(rotate(&maintainer, "standard").await?, "opened");
    assert_eq!(rotate(&maintainer, "standard").await?, "waiting");

    // Let the session cache the rings and the destination, so that its next look-up is the look-up
    // of the row.
    older
        .run("SELECT idem_try_claim('older', 'orders')")
        .await?;
    let looks = Pause::hold(db, "lookup: before heap fetch").await?;
    let in_sealed = Pause::hold(db, "insert: before complete").await?;
    older
        .run("SET idem.pause_at = 'lookup: before heap fetch, insert: before complete'")
        .await?;
    let older_pid = older.pid().await?;
    let older = start(older, format!("BEGIN; {}; COMMIT", writes.older));
    looks.until_reached(older_pid).await?;
    open.run("COMMIT").await?;
    assert_eq!(rotate(&maintainer, "standard").await?, "rotated");

    let looked = Pause::hold(db, "insert: before index").await?;
    let pause = match writes.newer_pauses_at {
        Some(place) => Some(Pause::hold(db, place).await?),
        None => None,
    };
    let places = writes.newer_pauses_at.unwrap_or_default();
    newer
        .run(&format!(
            "SET idem.pause_at = 'insert: before index, {places}'; BEGIN"
        ))
        .await?;
    let newer_pid = newer.pid().await?;
    let session = Arc::clone(&newer);
    let statement = writes.newer;
    let newer = tokio::spawn(async move { newer.text(statement).await });
    looked.until_reached(newer_pid).await?;
    looks.release().await?;
    in_sealed.until_reached(older_pid).await?;
    looked.release().await?;
    match &pause {
        Some(pause) => pause.until_reached(newer_pid).await?,
        None => {
            until("the newer session has written its row", async || {
                Ok(newer.is_finished())
            })
            .await?;
        }
    }
    in_sealed.release().await?;
    db.until_blocked(older_pid).await?;
    Ok(Writers {
        older,
        newer,
        pause,
        session,
    })
}

/// I8: the message is a duplicate for a transaction that has claimed it. The functions do not wait
/// for an older claimer, which would be a deadlock, and do not return `in_progress`.
#[tokio::test]
async fn i8_duplicate_does_not_wait_for_an_older_claimer() -> Result<()> {
    for (name, second, outcome) in [
        ("second", CLAIM, "f"),
        (
            "second_nowait",
            "SELECT outcome FROM idem_claim('m', 'orders', wait => false)",
            "duplicate",
        ),
        (
            "second_receive",
            "SELECT idem_receive('m', 'orders', '1'::jsonb)",
            "f",
        ),
        (
            "second_acquire",
            "SELECT outcome FROM idem_acquire('m', 'orders', '1 minute')",
            "duplicate",
        ),
    ] {
        let db = Database::without_worker(name).await?;
        let mut claimers = writers(&db, &CLAIMS).await?;
        assert_eq!(claimers.first().await?, "t");
        let result = claimers.session.text(second).await;
        assert_eq!(result.with_context(|| name)?, outcome, "{name}");
        claimers.session.run("COMMIT").await?;
        assert_eq!(claimers.older.await??, "f", "{name}");
    }
    Ok(())
}

/// I8: the second of two equal ids of a batch is a duplicate of the first. The batch does not wait
/// for the older claimer, which would be a deadlock.
#[tokio::test]
async fn i8_batch_with_an_id_twice_does_not_deadlock() -> Result<()> {
    let db = Database::without_worker("twice").await?;
    let batch = Writes {
        older: CLAIM,
        newer: "SELECT idem_try_claim_batch(ARRAY['m', 'm'], 'orders')",
        newer_pauses_at: Some("claim: before second look"),
    };
    let mut claimers = writers(&db, &batch).await?;
    assert_eq!(claimers.first().await?, "{t,f}");
    claimers.session.run("COMMIT").await?;
    assert_eq!(claimers.older.await??, "f");
    Ok(())
}

/// I10: a transaction cannot forget its own claim. `idem_forget` does not wait for an older
/// claimer, which would be a deadlock.
#[tokio::test]
async fn i10_forget_of_own_claim_fails_beside_an_older_claimer() -> Result<()> {
    let db = Database::without_worker("forget_own").await?;
    let mut claimers = writers(&db, &CLAIMS).await?;
    assert_eq!(claimers.first().await?, "t");
    let refusal = claimers
        .session
        .refused("SELECT idem_forget('m', 'orders')")
        .await?;
    assert_eq!(refusal.sqlstate, "55000", "{refusal:?}");
    claimers.session.run("ROLLBACK").await?;
    assert_eq!(claimers.older.await??, "t");
    Ok(())
}

/// A transaction that has begun an external call reads its own event, and does not wait for an
/// older transaction that begins the same call, which would be a deadlock.
#[tokio::test]
async fn call_does_not_wait_for_an_older_transaction() -> Result<()> {
    let calls = Writes {
        older: BEGIN_CALL,
        newer: BEGIN_CALL,
        newer_pauses_at: None,
    };
    for (name, second, state) in [
        ("begin_call", BEGIN_CALL, "unknown"),
        (
            "finish_call",
            "SELECT idem_finish_call('m', 'orders', 'pay', '1')",
            "done",
        ),
    ] {
        let db = Database::without_worker(name).await?;
        let mut writers = writers(&db, &calls).await?;
        assert_eq!(writers.first().await?, "new");
        writers.session.run(second).await.with_context(|| name)?;
        writers.session.run("COMMIT").await?;
        assert_eq!(writers.older.await??, state, "{name}");
    }
    Ok(())
}

/// I1: `idem_forget` has looked into the current slice while the ring is opening, and then another
/// session claims the message. The claim is in the current and in the next slice. `idem_forget`
/// deletes it from both.
#[tokio::test]
async fn i1_forget_deletes_a_claim_that_is_made_between_its_looks() -> Result<()> {
    let db = Database::without_worker("forget_looks").await?;
    let (maintainer, claims, forgets) = (
        db.connect().await?,
        db.connect().await?,
        db.connect().await?,
    );
    claims
        .run("SELECT idem_try_claim('warm', 'orders')")
        .await?;
    make_due(&maintainer, "standard").await?;
    assert_eq!(rotate(&maintainer, "standard").await?, "opened");
    let looked = Pause::hold(&db, "forget: after current").await?;
    looked.arm(&forgets).await?;
    let pid = forgets.pid().await?;
    let forget = start(forgets, "SELECT idem_forget('m', 'orders')");
    looked.until_reached(pid).await?;
    claims.run("SELECT idem_try_claim('m', 'orders')").await?;
    looked.release().await?;

    assert_eq!(forget.await??, "t");
    let known = "SELECT idem_is_claimed('m', 'orders'), idem_try_claim('m', 'orders')";
    assert_eq!(claims.text(known).await?, "f|t");
    Ok(())
}
