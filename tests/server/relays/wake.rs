//! Tests of waiting relays: only the commit of an effect wakes a waiting relay.

use anyhow::Result;
use idem_testkit::{Database, Session, until};

use super::reader::{Reader, send};

#[tokio::test]
async fn i5_commit_wakes_a_waiting_relay_and_rollback_does_not() -> Result<()> {
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

    // The relay is not woken by an effect that is rolled back, by an effect that is not committed
    // yet, or by a claim without an effect.
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
    let (waiter, woken) = tokio::time::timeout(idem_testkit::DEADLINE, waits).await??;
    assert_eq!(woken?, "t");
    assert_eq!(
        relay.drained().await?,
        ["committed"],
        "the relay reads the committed effect"
    );

    assert_eq!(
        waiter.text("SELECT idem_relay_wait(0)").await?,
        "f",
        "the relay already knows the committed effect"
    );
    send(&session, "while no relay waits").await?;
    assert_eq!(
        waiter.text("SELECT idem_relay_wait(60000)").await?,
        "t",
        "the relay does not miss a commit between two waits"
    );
    Ok(())
}

async fn until_waiting(session: &Session, pid: i32) -> Result<()> {
    until("the relay waits", async || {
        let waits =
            format!("SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = {pid}");
        Ok(session.text(&waits).await? == "t")
    })
    .await
}
