//! Tests of a transaction that claims a message twice while an older claimer waits for it, and of
//! `idem_forget` while the ring is opening. The older claimer entered before a rotation, so its row
//! is in a slice that is sealed now.

use std::sync::Arc;

use anyhow::Result;
use idem_cluster::{Cluster, Install};
use idem_testkit::{Database, Pause, Session};
use tokio::task::JoinHandle;

use super::claims::start;

/// Starts a cluster without a worker, so that only the test executes the steps of a rotation.
async fn database(name: &str) -> Result<Database> {
    let cluster = Cluster::builder(&Install::from_env()?)
        .name(&name.replace('_', "-"))
        .setting("shared_buffers", "32MB")
        .setting("idem.databases", "none")
        .start()?;
    Database::with_idem_in(Arc::new(cluster), name).await
}

async fn rotate(session: &Session) -> Result<String> {
    session.text("SELECT idem.rotate('standard', false)").await
}

/// Two claimers of the message `m`. The older claimer entered while the ring was opening. Its row
/// is in the slice that is sealed now, and it waits in the current slice for the transaction of the
/// newer claimer.
struct Claimers {
    older: JoinHandle<Result<String>>,
    /// Runs the `first` statement, and pauses after the insert of its row.
    newer: JoinHandle<Result<String>>,
    inserted: Pause,
    session: Arc<Session>,
}

async fn claimers(db: &Database, first: &'static str) -> Result<Claimers> {
    let (maintainer, open, older, newer) = (
        db.connect().await?,
        db.connect().await?,
        db.connect().await?,
        Arc::new(db.connect().await?),
    );
    // The claim that was rolled back leaves an index entry, at which the older claimer pauses when
    // it probes the slice.
    maintainer
        .run("BEGIN; SELECT idem_try_claim('m', 'orders'); ROLLBACK")
        .await?;
    maintainer
        .run("SELECT idem_try_claim('warm', 'orders')")
        .await?;
    open.run("BEGIN; SELECT idem_try_claim('open', 'orders')")
        .await?;
    maintainer
        .run("UPDATE idem.ring SET rotated_at = rotated_at - retention WHERE name = 'standard'")
        .await?;
    assert_eq!(rotate(&maintainer).await?, "opened");
    assert_eq!(rotate(&maintainer).await?, "waiting");

    // Let the session cache the rings and the destination, so that its next look-up is the look-up
    // of the claim.
    older
        .run("SELECT idem_try_claim('older', 'orders')")
        .await?;
    let probes = Pause::hold(db, "lookup: before heap fetch").await?;
    let in_sealed = Pause::hold(db, "insert: before complete").await?;
    older
        .run("SET idem.pause_at = 'lookup: before heap fetch, insert: before complete'")
        .await?;
    let older_pid = older.pid().await?;
    let older = start(older, "BEGIN; SELECT idem_try_claim('m', 'orders'); COMMIT");
    probes.until_reached(older_pid).await?;
    open.run("COMMIT").await?;
    assert_eq!(rotate(&maintainer).await?, "rotated");

    let probed = Pause::hold(db, "claim: before insert").await?;
    let inserted = Pause::hold(db, "claim: before second look").await?;
    newer
        .run("SET idem.pause_at = 'claim: before insert, claim: before second look'; BEGIN")
        .await?;
    let newer_pid = newer.pid().await?;
    let session = Arc::clone(&newer);
    let newer = tokio::spawn(async move { newer.text(first).await });
    probed.until_reached(newer_pid).await?;
    probes.release().await?;
    in_sealed.until_reached(older_pid).await?;
    probed.release().await?;
    inserted.until_reached(newer_pid).await?;
    in_sealed.release().await?;
    db.until_blocked(older_pid).await?;
    Ok(Claimers {
        older,
        newer,
        inserted,
        session,
    })
}

/// I8: the second claim is a duplicate of the first claim. It does not wait for the older claimer,
/// which would be a deadlock, and does not return `in_progress`.
#[tokio::test]
async fn i8_second_claim_does_not_wait_for_an_older_claimer() -> Result<()> {
    for (name, second, outcome) in [
        ("second", "SELECT idem_try_claim('m', 'orders')", "f"),
        (
            "second_nowait",
            "SELECT outcome FROM idem_claim('m', 'orders', wait => false)",
            "duplicate",
        ),
    ] {
        let db = database(name).await?;
        let claimers = claimers(&db, "SELECT idem_try_claim('m', 'orders')").await?;
        claimers.inserted.release().await?;
        assert_eq!(claimers.newer.await??, "t");
        assert_eq!(claimers.session.text(second).await?, outcome);
        claimers.session.run("COMMIT").await?;
        assert_eq!(claimers.older.await??, "f");
    }
    Ok(())
}

/// I8: the second of two equal ids of a batch is a duplicate of the first. The batch does not wait
/// for the older claimer, which would be a deadlock.
#[tokio::test]
async fn i8_batch_with_an_id_twice_does_not_deadlock() -> Result<()> {
    let db = database("twice").await?;
    let batch = "SELECT idem_try_claim_batch(ARRAY['m', 'm'], 'orders')";
    let claimers = claimers(&db, batch).await?;
    claimers.inserted.release().await?;
    assert_eq!(claimers.newer.await??, "{t,f}");
    claimers.session.run("COMMIT").await?;
    assert_eq!(claimers.older.await??, "f");
    Ok(())
}

/// I1: `idem_forget` has looked into the current slice while the ring is opening, and then another
/// session claims the message. The claim is in the current and in the next slice. `idem_forget`
/// deletes it from both.
#[tokio::test]
async fn i1_forget_deletes_a_claim_that_is_made_between_its_looks() -> Result<()> {
    let db = database("forget_looks").await?;
    let (maintainer, claims, forgets) = (
        db.connect().await?,
        db.connect().await?,
        db.connect().await?,
    );
    claims
        .run("SELECT idem_try_claim('warm', 'orders')")
        .await?;
    maintainer
        .run("UPDATE idem.ring SET rotated_at = rotated_at - retention WHERE name = 'standard'")
        .await?;
    assert_eq!(rotate(&maintainer).await?, "opened");
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
