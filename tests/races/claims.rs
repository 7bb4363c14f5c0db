//! Tests of concurrent claims: the index entry of a losing claimer, which inserts its row only for
//! a moment, must not count as a claim.

use std::sync::Arc;

use anyhow::Result;
use idem_testkit::{Database, Pause, Session};
use tokio::task::JoinHandle;

/// Starts a task that runs the statements on the session.
pub fn start(session: Session, sql: impl Into<String>) -> JoinHandle<Result<String>> {
    let sql = sql.into();
    tokio::spawn(async move { session.text(&sql).await })
}

/// Starts a claimer that will not get the claim. The claimer pauses twice: when its row is in the
/// table and not in the index, and when the row is in both.
async fn loser(db: &Database) -> Result<(Pause, Pause, i32, JoinHandle<Result<String>>)> {
    db.connect()
        .await?
        .run("SELECT idem.intern_destination('orders')")
        .await?;
    let (in_table, in_index) = (
        Pause::hold(db, "insert: before index").await?,
        Pause::hold(db, "insert: before complete").await?,
    );
    let session = db.connect().await?;
    session
        .run("SET idem.pause_at = 'insert: before index, insert: before complete'")
        .await?;
    let pid = session.pid().await?;
    let claim = start(
        session,
        "BEGIN; SELECT idem_try_claim('m', 'orders'); COMMIT",
    );
    in_table.until_reached(pid).await?;
    Ok((in_table, in_index, pid, claim))
}

/// I1: the claim is found although the index entry of a losing claimer precedes the index entry of
/// the claim.
#[tokio::test]
async fn i1_index_entry_of_a_loser_does_not_hide_the_claim() -> Result<()> {
    let db = Database::without_worker("loser").await?;
    let (in_table, in_index, pid, loser) = loser(&db).await?;
    let winner = db.connect().await?;
    assert_eq!(
        winner
            .text("BEGIN; SELECT idem_try_claim('m', 'orders')")
            .await?,
        "t"
    );
    in_table.release().await?;
    in_index.until_reached(pid).await?;

    let recorded = winner
        .text(
            r#"SELECT cardinality(
                   idem_record_effects('m', 'orders', '[{"topic": "t", "payload": 1}]'))"#,
        )
        .await?;
    assert_eq!(recorded, "1");
    in_index.release().await?;
    winner.run("COMMIT").await?;
    assert_eq!(loser.await??, "f");
    Ok(())
}

/// I4: a claimer that finds a lease deletes its own row again, also when the index entry of a
/// losing claimer precedes the entry of this row. A row that stayed would count as a claim, and the
/// message would be lost.
#[tokio::test]
async fn i4_claim_is_taken_back_behind_a_losers_index_entry() -> Result<()> {
    let db = Database::without_worker("taken_back").await?;
    let (in_table, in_index, pid, loser) = loser(&db).await?;
    let (claimer, leaser) = (db.connect().await?, db.connect().await?);
    let looked = Pause::hold(&db, "claim: before insert").await?;
    let inserted = Pause::hold(&db, "claim: before second look").await?;
    claimer
        .run("SET idem.pause_at = 'claim: before insert, claim: before second look'")
        .await?;
    let claimer_pid = claimer.pid().await?;
    let claim = start(
        claimer,
        "BEGIN; SELECT outcome FROM idem_claim('m', 'orders', wait => false); COMMIT",
    );
    looked.until_reached(claimer_pid).await?;
    assert_eq!(
        leaser
            .text("SELECT outcome FROM idem_acquire('m', 'orders', '1 hour')")
            .await?,
        "acquired"
    );
    looked.release().await?;
    inserted.until_reached(claimer_pid).await?;
    in_table.release().await?;
    in_index.until_reached(pid).await?;

    inserted.release().await?;
    assert_eq!(claim.await??, "in_progress");
    assert_eq!(
        leaser.text("SELECT idem_is_claimed('m', 'orders')").await?,
        "f"
    );
    in_index.release().await?;
    let refused = format!(
        "{:#}",
        loser
            .await?
            .expect_err("the claim of a leased message succeeded")
    );
    assert!(refused.contains("55P03"), "{refused}");
    Ok(())
}

/// I4: a claimer has written its claim and has not yet locked the row of the dead message. A session
/// that discards the dead letter locks this row first. It fails instead of waiting for the claimer,
/// which waits for the row.
#[tokio::test]
async fn i4_discard_fails_while_another_transaction_is_claiming() -> Result<()> {
    let db = Database::without_worker("discard").await?;
    let (claimer, discarder) = (db.connect().await?, db.connect().await?);
    claimer
        .run("SELECT idem_acquire('m', 'work', '1 hour')")
        .await?;
    let token = "(SELECT token FROM idem.pending WHERE id = 'm')";
    claimer
        .run(&format!(
            "SELECT idem_bury('m', 'work', {token}, 'payload', 'broken')"
        ))
        .await?;
    let written = Pause::hold(&db, "claim: before second look").await?;
    written.arm(&claimer).await?;
    let pid = claimer.pid().await?;
    let claim = start(claimer, "SELECT idem_try_claim('m', 'work')");
    written.until_reached(pid).await?;

    let discard = "SELECT idem_discard('m', 'work')";
    assert_eq!(discarder.refused(discard).await?.sqlstate, "55P03");
    written.release().await?;
    assert_eq!(claim.await??, "t");
    assert_eq!(discarder.text(discard).await?, "t");
    Ok(())
}

/// I11: a claimer that arrives while another session creates the destination waits until the
/// destination is permanent, and not until the end of that transaction. A creator that fails before
/// leaves no destination.
#[tokio::test]
async fn i11_claim_waits_for_the_creation_of_a_destination_only() -> Result<()> {
    let db = Database::without_worker("creation").await?;
    for (name, is_cancelled) in [("kept", false), ("cancelled", true)] {
        let (creator, other, admin) = (
            db.connect().await?,
            db.connect().await?,
            db.connect().await?,
        );
        let created = Pause::hold(&db, "insert: before permanent").await?;
        creator
            .run("SET idem.pause_at = 'insert: before permanent'; BEGIN")
            .await?;
        let creator_pid = creator.pid().await?;
        let creator = Arc::new(creator);
        let creation = tokio::spawn({
            let creator = creator.clone();
            async move {
                creator
                    .text(&format!("SELECT idem_try_claim('m1', '{name}')"))
                    .await
            }
        });
        created.until_reached(creator_pid).await?;
        let other_pid = other.pid().await?;
        let claim = start(
            other,
            format!("SELECT outcome FROM idem_claim('m2', '{name}', wait => false)"),
        );
        db.until_blocked(other_pid).await?;
        if is_cancelled {
            admin
                .run(&format!("SELECT pg_cancel_backend({creator_pid})"))
                .await?;
            assert!(creation.await?.is_err());
        }
        created.release().await?;
        // The transaction of the creator is still open.
        assert_eq!(claim.await??, "claimed", "{name}");
        creator.run("ROLLBACK").await?;
        assert_eq!(
            admin
                .text(&format!(
                    "SELECT count(*) FROM idem.destination WHERE name = '{name}'"
                ))
                .await?,
            "1"
        );
    }
    Ok(())
}

/// Two sessions forget the same claim. The first session deletes the claim. The second session then
/// finds no claim and returns false.
#[tokio::test]
async fn second_concurrent_forget_returns_false() -> Result<()> {
    let db = Database::with_idem("forget").await?;
    let (first, second) = (db.connect().await?, db.connect().await?);
    first
        .run("BEGIN; SELECT idem_try_claim('m', 'orders'); COMMIT")
        .await?;
    let found = Pause::hold(&db, "hold: before lock").await?;
    found.arm(&second).await?;
    let pid = second.pid().await?;
    let forget = start(second, "SELECT idem_forget('m', 'orders')");
    found.until_reached(pid).await?;

    assert_eq!(first.text("SELECT idem_forget('m', 'orders')").await?, "t");
    found.release().await?;
    assert_eq!(forget.await??, "f");
    Ok(())
}

/// I4: a receiver looks at the expired lease of a message while a claim deletes the pending row,
/// before or after the receiver has read the row. If the claim commits, the message is known. If
/// the claim rolls back, the receiver stores the message: the broker does not deliver it again
/// after the acknowledgement.
#[tokio::test]
async fn i4_receive_waits_for_claim_of_a_leased_message() -> Result<()> {
    let db = Database::with_idem("received").await?;
    let (session, claimer) = (db.connect().await?, db.connect().await?);
    session
        .run("SELECT idem.intern_destination('orders')")
        .await?;
    for place in ["lookup: before heap fetch", "hold: before lock"] {
        for (end, is_stored) in [("COMMIT", "f"), ("ROLLBACK", "t")] {
            session
                .run("SELECT idem_acquire('m', 'orders', '1 ms'); SELECT pg_sleep(0.01)")
                .await?;
            let receiver = db.connect().await?;
            // The receiver then finds the destination in its cache, so its first row is the pending
            // row.
            receiver
                .run("SELECT idem_is_claimed('m', 'orders')")
                .await?;
            let found = Pause::hold(&db, place).await?;
            found.arm(&receiver).await?;
            let pid = receiver.pid().await?;
            let receive = start(receiver, "SELECT idem_receive('m', 'orders', '1'::jsonb)");
            found.until_reached(pid).await?;
            let claim = "BEGIN; SELECT idem_try_claim('m', 'orders')";
            assert_eq!(claimer.text(claim).await?, "t");
            found.release().await?;
            db.until_blocked(pid).await?;
            claimer.run(end).await?;
            assert_eq!(receive.await??, is_stored, "{place}: {end}");
            session.run("SELECT idem_try_claim('m', 'orders')").await?;
            session.run("SELECT idem_forget('m', 'orders')").await?;
            let left = session.text("SELECT count(*) FROM idem.pending").await?;
            assert_eq!(left, "0", "{place}: {end}");
        }
    }
    Ok(())
}

/// A claimer has written its row and has not looked for the lease yet, which began before the
/// claim. The holder cannot wait for the claimer, so its completion fails with 55P03. The claim
/// then finds the lease, and the second completion of the holder succeeds.
#[tokio::test]
async fn completion_succeeds_after_claim_has_found_the_lease() -> Result<()> {
    let db = Database::with_idem("completes_later").await?;
    let (claimer, holder) = (db.connect().await?, db.connect().await?);
    holder
        .run("SELECT idem.intern_destination('orders')")
        .await?;
    let looked = Pause::hold(&db, "claim: before insert").await?;
    let inserted = Pause::hold(&db, "claim: before second look").await?;
    claimer
        .run("SET idem.pause_at = 'claim: before insert, claim: before second look'")
        .await?;
    let pid = claimer.pid().await?;
    let claim = start(
        claimer,
        "BEGIN; SELECT outcome FROM idem_claim('m', 'orders', wait => false); COMMIT",
    );
    looked.until_reached(pid).await?;
    let token = holder
        .text("SELECT token FROM idem_acquire('m', 'orders', '1 hour')")
        .await?;
    looked.release().await?;
    inserted.until_reached(pid).await?;

    let complete = format!("SELECT idem_complete('m', 'orders', {token})");
    let refusal = holder.refused(&complete).await?;
    assert_eq!(refusal.sqlstate, "55P03", "{refusal:?}");
    assert!(refusal.hint.starts_with("Try again"), "{refusal:?}");
    inserted.release().await?;
    assert_eq!(claim.await??, "in_progress");
    holder.run(&complete).await?;
    assert_eq!(
        holder.text("SELECT idem_is_claimed('m', 'orders')").await?,
        "t"
    );
    Ok(())
}

/// A claimer finds a lease that was acquired after its first look, and returns `in_progress`. While
/// its transaction is open, the holder extends and releases the lease. The row that the claimer
/// deleted again stops only the completion, until the transaction ends.
#[tokio::test]
async fn refused_claim_does_not_lock_the_lease() -> Result<()> {
    let db = Database::with_idem("refused_claim").await?;
    let (claimer, holder) = (Arc::new(db.connect().await?), db.connect().await?);
    holder
        .run("SELECT idem.intern_destination('orders'); SET lock_timeout = '5s'")
        .await?;
    let looked = Pause::hold(&db, "claim: before insert").await?;
    looked.arm(&claimer).await?;
    let pid = claimer.pid().await?;
    let claims = Arc::clone(&claimer);
    let claim = tokio::spawn(async move {
        let claim = "BEGIN; SELECT outcome FROM idem_claim('m', 'orders', wait => false)";
        claims.text(claim).await
    });
    looked.until_reached(pid).await?;
    let acquire = "SELECT token FROM idem_acquire('m', 'orders', '1 hour')";
    let token = holder.text(acquire).await?;
    looked.release().await?;
    assert_eq!(claim.await??, "in_progress");

    holder
        .run(&format!(
            "SELECT idem_extend('m', 'orders', {token}, '2 hours')"
        ))
        .await?;
    let complete = format!("SELECT idem_complete('m', 'orders', {token})");
    let refusal = holder.refused(&complete).await?;
    assert_eq!(refusal.sqlstate, "55P03", "{refusal:?}");
    assert!(
        refusal.hint.contains("when that transaction has ended"),
        "{refusal:?}"
    );
    holder
        .run(&format!("SELECT idem_release('m', 'orders', {token})"))
        .await?;
    claimer.run("COMMIT").await?;
    let token = holder.text(acquire).await?;
    holder
        .run(&format!("SELECT idem_complete('m', 'orders', {token})"))
        .await?;
    let claimed = "SELECT idem_is_claimed('m', 'orders')";
    assert_eq!(holder.text(claimed).await?, "t");
    Ok(())
}
