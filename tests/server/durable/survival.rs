//! Tests that a restart, a crash and a dump keep leases, back-offs, schedules and dead letters,
//! because these are rows of tables.

use anyhow::Result;
use idem_cluster::{Cluster, Install, Shutdown};
use idem_testkit::{Dump, Session, until};

use super::{claim, fail, ids, next, receive};

fn cluster(name: &str) -> Result<Cluster> {
    Cluster::builder(&Install::from_env()?)
        .name(name)
        .setting("shared_buffers", "32MB")
        .start()
}

/// Creates one message in each state: dead, waiting for a retry, leased, scheduled, and waiting
/// behind the leased message of its key. Returns the token of the leased message.
async fn one_of_each(session: &Session) -> Result<i64> {
    session
        .run("SELECT idem_configure_retries('mail', 2, base => '1 hour', cap => '1 hour')")
        .await?;
    receive(session, "dead", "").await?;
    let held = next(session, 1).await?.remove(0);
    session
        .run(&format!(
            "SELECT idem_release('dead', 'mail', {}, 'for good', true)",
            held.token
        ))
        .await?;
    receive(session, "resting", "").await?;
    let held = next(session, 1).await?.remove(0);
    fail(session, &held, "boom").await?;
    receive(session, "held", ", key => 'k'").await?;
    receive(session, "waiting", ", key => 'k'").await?;
    receive(
        session,
        "scheduled",
        ", deliver_after => now() + interval '1 day'",
    )
    .await?;
    let held = next(session, 10).await?;
    assert_eq!(ids(&held), ["held"]);
    Ok(held[0].token)
}

const STATE: &str = "SELECT id, attempt, state, due_at, errors FROM idem.pending ORDER BY id";

async fn assert_continues(session: &Session, token: i64) -> Result<()> {
    assert_eq!(
        ids(&next(session, 10).await?),
        [""; 0],
        "leased, waiting and scheduled messages are not handed out"
    );
    session
        .run(&format!("SELECT idem_extend('held', 'mail', {token})"))
        .await?;
    session
        .run(&format!("SELECT idem_complete('held', 'mail', {token})"))
        .await?;
    let handed = next(session, 10).await?;
    assert_eq!(ids(&handed), ["waiting"]);
    assert!(handed[0].token > token, "the new token is higher");
    session
        .run(
            "UPDATE idem.pending_0 SET due_at = clock_timestamp() \
             WHERE id IN ('resting', 'scheduled')",
        )
        .await?;
    let handed = next(session, 10).await?;
    assert_eq!(ids(&handed), ["resting", "scheduled"]);
    assert_eq!(
        (handed[0].attempt, handed[0].last_error.as_str()),
        (2, "boom")
    );
    assert_eq!(
        session.text("SELECT idem_requeue('dead', 'mail')").await?,
        "t"
    );
    assert_eq!(ids(&next(session, 10).await?), ["dead"]);
    for id in ["dead", "resting", "scheduled", "waiting"] {
        assert!(claim(session, id).await?, "{id}");
    }
    assert_eq!(
        session.text("SELECT count(*) FROM idem.pending").await?,
        "0"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_and_crash_keep_leases_backoffs_and_schedules() -> Result<()> {
    let mut cluster = cluster("durable-restart")?;
    for how in [Shutdown::Fast, Shutdown::Immediate] {
        let database = format!("{how:?}").to_lowercase();
        Session::superuser(&cluster, "postgres")
            .await?
            .run(&format!("CREATE DATABASE {database} TEMPLATE template0"))
            .await?;
        let session = Session::superuser(&cluster, &database).await?;
        session.run("CREATE EXTENSION idem").await?;
        let token = one_of_each(&session).await?;
        let before = session.text(STATE).await?;
        drop(session);
        cluster.stop(how)?;
        cluster.start()?;
        let session = Session::superuser(&cluster, &database).await?;
        assert_eq!(session.text(STATE).await?, before, "{how:?}");
        assert_continues(&session, token).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_database_continues_its_pending_messages() -> Result<()> {
    let cluster = cluster("durable-dump")?;
    let session = Session::superuser(&cluster, "postgres").await?;
    session
        .run("CREATE DATABASE original TEMPLATE template0; ")
        .await?;
    let original = Session::superuser(&cluster, "original").await?;
    original.run("CREATE EXTENSION idem").await?;
    let token = one_of_each(&original).await?;
    let before = original.text(STATE).await?;
    let restored = Dump::of(&cluster, "original")?
        .restore(&cluster, "restored")
        .await?;
    assert_eq!(restored.text(STATE).await?, before);
    assert_continues(&restored, token).await?;
    Ok(())
}

/// A lease expires by the clock of the server, also while the server is down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_that_expires_during_downtime_is_redelivered() -> Result<()> {
    let mut cluster = cluster("durable-down")?;
    let session = Session::superuser(&cluster, "postgres").await?;
    session.run("CREATE EXTENSION idem").await?;
    receive(&session, "a", "").await?;
    assert_eq!(super::next_for(&session, 1, "1 second").await?.len(), 1);
    drop(session);
    cluster.restart()?;
    let session = Session::superuser(&cluster, "postgres").await?;
    until("the message is redelivered", async || {
        let handed = next(&session, 1).await?;
        Ok(handed
            .first()
            .is_some_and(|h| h.attempt == 2 && h.last_error == "the lease expired"))
    })
    .await
}
