//! A relay that waits is woken by a commit, and by nothing else.

use anyhow::Result;
use idem_tests::harness::{Database, Session, until};

use super::reader::{Reader, send};

#[tokio::test]
async fn i5_a_waiting_relay_is_woken_by_a_commit_and_not_by_a_rollback() -> Result<()> {
    let db = Database::with_idem("wake").await?;
    let (session, waiter) = (db.connect().await?, db.connect().await?);
    let relay = Reader::of(&db, "default").await?;

    session.run("BEGIN").await?;
    send(&session, "rolled back").await?;
    session.run("ROLLBACK").await?;
    assert_eq!(
        waiter.text("SELECT idem_relay_wait(50)").await?,
        "f",
        "nothing was committed"
    );

    // While it waits: what is rolled back, what is not committed yet, and what is no effect.
    let pid = waiter.pid().await?;
    let waits = tokio::spawn(async move {
        let woken = waiter.text("SELECT idem_relay_wait(60000)").await;
        (waiter, woken)
    });
    until_waiting(&session, pid).await?;
    session.run("BEGIN").await?;
    send(&session, "rolled back").await?;
    session
        .run("ROLLBACK; SELECT idem_try_claim('m1', 'orders')")
        .await?;
    session.run("BEGIN").await?;
    send(&session, "committed").await?;
    until_waiting(&session, pid).await?;
    assert!(!waits.is_finished());
    session.run("COMMIT").await?;
    let (waiter, woken) = tokio::time::timeout(idem_tests::harness::DEADLINE, waits).await??;
    assert_eq!(woken?, "t");
    assert_eq!(relay.drained().await?, ["committed"], "and there it is");

    assert_eq!(
        waiter.text("SELECT idem_relay_wait(0)").await?,
        "f",
        "it knows of that one"
    );
    send(&session, "while nobody waits").await?;
    assert_eq!(
        waiter.text("SELECT idem_relay_wait(60000)").await?,
        "t",
        "what came in between is not missed"
    );
    Ok(())
}

async fn until_waiting(session: &Session, pid: i32) -> Result<()> {
    until("it waits", async || {
        let waits =
            format!("SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = {pid}");
        Ok(session.text(&waits).await? == "t")
    })
    .await
}
