//! I1: claims skip the look at pending messages only while there is none.

use std::sync::Arc;

use anyhow::Result;
use idem_cluster::{Cluster, Install};
use idem_tests::harness::{Database, Session};

use super::fencing::acquire;

const PRESENCE: &str = "SELECT idem.pending_presence()";

/// A cluster without a worker: the maintenance is what the test calls.
async fn database() -> Result<Database> {
    let cluster = Cluster::builder(&Install::from_env()?)
        .name("presence")
        .setting("shared_buffers", "32MB")
        .setting("idem.databases", "nobody")
        .start()?;
    Database::with_idem_in(Arc::new(cluster), "presence").await
}

async fn pass(session: &Session) -> Result<String> {
    session.run("CALL idem_maintain()").await?;
    session.text(PRESENCE).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_claim_respects_a_lease_that_follows_a_quiet_time() -> Result<()> {
    let db = database().await?;
    let (session, claimer) = (db.connect().await?, db.connect().await?);
    assert_eq!(
        session.text(PRESENCE).await?,
        "some",
        "nothing is known after the start"
    );
    assert_eq!(pass(&session).await?, "quiet");
    assert_eq!(pass(&session).await?, "none");
    assert_eq!(
        claimer.text("SELECT idem_try_claim('a', 'work')").await?,
        "t"
    );

    acquire(&session, "m", "1 hour").await?;
    assert_eq!(session.text(PRESENCE).await?, "some");
    let refusal = claimer
        .refused("SELECT idem_try_claim('m', 'work')")
        .await?;
    assert_eq!(refusal.sqlstate, "55P03", "{refusal:?}");
    // A pending message keeps the note, however many passes there are.
    for _ in 0..3 {
        assert_eq!(pass(&session).await?, "some");
    }
    Ok(())
}

/// A note between two passes starts the count anew, and a table that is locked is not judged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_presence_is_cleared_only_after_a_whole_quiet_pass() -> Result<()> {
    let db = database().await?;
    let (session, writer) = (db.connect().await?, db.connect().await?);
    assert_eq!(pass(&session).await?, "quiet");
    writer
        .run("BEGIN; SELECT idem_receive('m', 'work', '1'::jsonb)")
        .await?;
    assert_eq!(
        session.text(PRESENCE).await?,
        "some",
        "noted before the commit"
    );
    assert_eq!(pass(&session).await?, "quiet", "the row is not visible yet");
    assert_eq!(
        pass(&session).await?,
        "quiet",
        "but its writer holds the table"
    );
    writer.run("COMMIT").await?;
    assert_eq!(
        pass(&session).await?,
        "quiet",
        "a pending message is no reason to clear"
    );
    assert_eq!(
        session.text("SELECT idem_try_claim('m', 'work')").await?,
        "t"
    );
    assert_eq!(
        session.text("SELECT count(*) FROM idem.pending").await?,
        "0",
        "the claim looked"
    );
    Ok(())
}

/// A restore, or logical replication, writes the tables without the functions of idem.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_copy_into_the_table_is_noticed() -> Result<()> {
    let db = database().await?;
    let session = db.connect().await?;
    acquire(&session, "m", "1 hour").await?;
    session
        .run("CREATE TABLE copy AS TABLE idem.pending_0; TRUNCATE idem.pending_0")
        .await?;
    pass(&session).await?;
    assert_eq!(pass(&session).await?, "none");
    session
        .run("SET session_replication_role = replica; INSERT INTO idem.pending_0 TABLE copy; RESET session_replication_role")
        .await?;
    assert_eq!(session.text(PRESENCE).await?, "some");
    let refusal = session
        .refused("SELECT idem_try_claim('m', 'work')")
        .await?;
    assert_eq!(refusal.sqlstate, "55P03", "{refusal:?}");
    Ok(())
}
