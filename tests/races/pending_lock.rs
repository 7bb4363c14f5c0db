//! Tests of the lock on the table of pending messages: a session that waits for a claim does not
//! hold it, so the rotation of the table does not have to wait for that claim.

use std::sync::Arc;

use anyhow::{Context, Result};
use idem_testkit::{Database, Pause, Session};

use super::claims::start;

/// Locks both tables of pending messages, as their rotation does.
async fn lock_tables(session: &Session) -> Result<()> {
    session
        .run(
            "BEGIN; SET LOCAL lock_timeout = '5s';
             LOCK TABLE idem.pending_0, idem.pending_1 IN ACCESS EXCLUSIVE MODE; COMMIT",
        )
        .await
        .context("cannot lock the tables of pending messages")
}

/// Starts a database with a pending message, so that claims look for pending messages. Returns a
/// claimer that has claimed `m` in an open transaction, and a session for maintenance.
async fn database(name: &str) -> Result<(Database, Session, Session)> {
    let db = Database::with_idem(name).await?;
    let (claimer, maintainer) = (db.connect().await?, db.connect().await?);
    maintainer
        .run("SELECT idem_receive('other', 'orders', '1'::jsonb)")
        .await?;
    Ok((db, claimer, maintainer))
}

const CLAIM: &str = "BEGIN; SELECT idem_try_claim('m', 'orders')";

/// A claimer that has looked for a pending message loses at the insert, and waits for the other
/// claimer.
#[tokio::test]
async fn claimer_that_loses_its_insert_waits_unlocked() -> Result<()> {
    let (db, first, maintainer) = database("loses_insert").await?;
    let second = db.connect().await?;
    let looked = Pause::hold(&db, "claim: before insert").await?;
    looked.arm(&second).await?;
    let pid = second.pid().await?;
    let claim = start(second, "SELECT idem_try_claim('m', 'orders')");
    looked.until_reached(pid).await?;
    assert_eq!(first.text(CLAIM).await?, "t");
    looked.release().await?;
    db.until_blocked(pid).await?;

    let locked = lock_tables(&maintainer).await;
    first.run("COMMIT").await?;
    assert_eq!(claim.await??, "f");
    locked
}

/// A batch has claimed a message, and waits for the claimer of another one.
#[tokio::test]
async fn batch_waits_for_a_claimer_unlocked() -> Result<()> {
    let (db, first, maintainer) = database("batch_waits").await?;
    let second = db.connect().await?;
    assert_eq!(first.text(CLAIM).await?, "t");
    let pid = second.pid().await?;
    // The hash of `s` is the smaller one, so the batch claims `s` first.
    let batch = "SELECT idem_try_claim_batch(ARRAY['m', 's'], 'orders')";
    let claims = start(second, batch);
    db.until_blocked(pid).await?;

    let locked = lock_tables(&maintainer).await;
    first.run("COMMIT").await?;
    assert_eq!(claims.await??, "{f,t}");
    locked
}

/// A receiver finds a claim in progress when it has written its row. It withdraws the row, and
/// waits for the claimer.
#[tokio::test]
async fn receiver_waits_for_a_claimer_unlocked() -> Result<()> {
    let (db, claimer, maintainer) = database("receiver_waits").await?;
    for (end, is_stored) in [("ROLLBACK", "t"), ("COMMIT", "f")] {
        let receiver = Arc::new(db.connect().await?);
        let written = Pause::hold(&db, "insert: before index").await?;
        written.arm(&receiver).await?;
        let pid = receiver.pid().await?;
        let receives = Arc::clone(&receiver);
        let receive = tokio::spawn(async move {
            let receive = "BEGIN; SELECT idem_receive('m', 'orders', '1'::jsonb)";
            receives.text(receive).await
        });
        written.until_reached(pid).await?;
        assert_eq!(claimer.text(CLAIM).await?, "t");
        written.release().await?;
        db.until_blocked(pid).await?;

        let locked = lock_tables(&maintainer).await;
        claimer.run(end).await?;
        assert_eq!(receive.await??, is_stored, "{end}");
        receiver.run("ROLLBACK").await?;
        locked?;
    }
    Ok(())
}
