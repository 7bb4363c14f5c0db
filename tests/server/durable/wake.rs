//! Tests of waiting: a consumer that waits for messages is woken by a commit, or when a message is
//! due.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use idem_testkit::{DEADLINE, Database, Session, until};

use super::{claim, fail, ids, next, receive};

async fn until_waiting(session: &Session, pid: i32) -> Result<()> {
    until("the consumer waits", async || {
        let waits =
            format!("SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = {pid}");
        Ok(session.text(&waits).await? == "t")
    })
    .await
}

/// Starts a session that waits for a minute. Returns its process id and the handle of its result.
async fn waits(db: &Database) -> Result<(i32, tokio::task::JoinHandle<Result<String>>)> {
    let waiter = db.connect().await?;
    let pid = waiter.pid().await?;
    Ok((
        pid,
        tokio::spawn(async move { waiter.text("SELECT idem_next_wait('mail', 60000)").await }),
    ))
}

/// A waiting consumer holds no lock on the tables of pending messages. With such a lock the tables
/// could not rotate, and they would grow for as long as the consumer waits.
#[tokio::test]
async fn waiting_consumer_holds_no_lock_on_pending_tables() -> Result<()> {
    let db = Database::with_idem("no_lock").await?;
    let session = db.connect().await?;
    receive(
        &session,
        "later",
        ", deliver_after => now() + interval '1 hour'",
    )
    .await?;
    let (pid, waiter) = waits(&db).await?;
    until_waiting(&session, pid).await?;
    let locks = format!(
        "SELECT count(*) FROM pg_locks WHERE pid = {pid} \
         AND relation = ANY ('{{idem.pending_0, idem.pending_1}}'::regclass[])"
    );
    assert_eq!(session.text(&locks).await?, "0");
    session
        .run(&format!("SELECT pg_cancel_backend({pid})"))
        .await?;
    assert!(waiter.await?.is_err());
    Ok(())
}

#[tokio::test]
async fn commit_wakes_a_waiting_consumer_and_rollback_does_not() -> Result<()> {
    let db = Database::with_idem("woken").await?;
    let session = db.connect().await?;
    assert_eq!(
        session.text("SELECT idem_next_wait('mail', 20)").await?,
        "f"
    );
    let (pid, waiter) = waits(&db).await?;
    until_waiting(&session, pid).await?;
    session.run("BEGIN").await?;
    receive(&session, "rolled back", "").await?;
    session.run("ROLLBACK").await?;
    session
        .run("SELECT idem_receive('x', 'other', '1'::jsonb); SELECT idem_send('t', '1'::jsonb)")
        .await?;
    until_waiting(&session, pid).await?;
    assert!(
        !waiter.is_finished(),
        "no message for this consumer is committed"
    );
    receive(&session, "a", "").await?;
    assert_eq!(tokio::time::timeout(DEADLINE, waiter).await???, "t");
    assert_eq!(ids(&next(&session, 10).await?), ["a"]);
    Ok(())
}

#[tokio::test]
async fn waiting_consumer_is_woken_when_a_message_is_due() -> Result<()> {
    let db = Database::with_idem("due").await?;
    let session = db.connect().await?;
    let started = Instant::now();
    receive(
        &session,
        "later",
        ", deliver_after => clock_timestamp() + interval '1 second'",
    )
    .await?;
    let (_, waiter) = waits(&db).await?;
    assert_eq!(tokio::time::timeout(DEADLINE, waiter).await???, "t");
    assert!(
        started.elapsed() >= Duration::from_millis(900),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(ids(&next(&session, 10).await?), ["later"]);
    Ok(())
}

#[tokio::test]
async fn waiting_consumer_is_woken_by_release_and_requeue() -> Result<()> {
    let db = Database::with_idem("given").await?;
    let session = db.connect().await?;
    super::without_back_off(&session, 2).await?;
    receive(&session, "a", "").await?;
    for step in 1..=3 {
        let (pid, waiter) = if step == 3 {
            let requeued = waits(&db).await?;
            until_waiting(&session, requeued.0).await?;
            session.run("SELECT idem_requeue('a', 'mail')").await?;
            requeued
        } else {
            let held = next(&session, 1).await?.remove(0);
            let given = waits(&db).await?;
            until_waiting(&session, given.0).await?;
            fail(&session, &held, "again").await?;
            if step == 2 {
                // The message is dead, so the consumer is not woken. Cancel its wait.
                session
                    .run(&format!("SELECT pg_cancel_backend({})", given.0))
                    .await?;
            }
            given
        };
        let woken = tokio::time::timeout(DEADLINE, waiter).await??;
        assert_eq!(woken.is_ok(), step != 2, "step {step} of {pid}: {woken:?}");
    }
    Ok(())
}

/// A message can be leased when its predecessor of the same key is done. No new message wakes the
/// waiting consumer, but the consumer gets the message after a short time.
#[tokio::test]
async fn waiting_consumer_gets_successor_of_finished_message() -> Result<()> {
    let db = Arc::new(Database::with_idem("successor").await?);
    let session = db.connect().await?;
    receive(&session, "a", ", key => 'k'").await?;
    receive(&session, "b", ", key => 'k'").await?;
    assert_eq!(ids(&next(&session, 1).await?), ["a"]);
    let other = db.connect().await?;
    let gets = tokio::spawn(async move {
        loop {
            let handed = next(&other, 1).await?;
            if !handed.is_empty() {
                return anyhow::Ok(handed);
            }
            other.run("SELECT idem_next_wait('mail', 60000)").await?;
        }
    });
    assert!(claim(&session, "a").await?);
    assert_eq!(ids(&tokio::time::timeout(DEADLINE, gets).await???), ["b"]);
    Ok(())
}

/// A message that is leased, or that waits for a retry or for its predecessor, does not wake a
/// consumer.
#[tokio::test]
async fn waiter_sleeps_while_no_message_can_be_handed_out() -> Result<()> {
    let db = Database::with_idem("asleep").await?;
    let (session, holder) = (db.connect().await?, db.connect().await?);
    const WAIT: &str = "SELECT idem_next_wait('mail', 400)";
    receive(&session, "leased", "").await?;
    assert_eq!(session.text(WAIT).await?, "t");
    assert_eq!(ids(&next(&session, 1).await?), ["leased"]);
    assert_eq!(session.text(WAIT).await?, "f", "its lease lasts an hour");

    receive(&session, "first", ", key => 'k'").await?;
    receive(&session, "second", ", key => 'k'").await?;
    assert_eq!(ids(&next(&session, 1).await?), ["first"]);
    assert_eq!(session.text(WAIT).await?, "f", "the predecessor is leased");

    receive(&session, "held", "").await?;
    holder.run("BEGIN").await?;
    assert_eq!(ids(&next(&holder, 1).await?), ["held"]);
    assert_eq!(
        session.text(WAIT).await?,
        "f",
        "a running transaction has leased it"
    );
    holder.run("ROLLBACK").await?;
    assert_eq!(session.text(WAIT).await?, "t");
    Ok(())
}
