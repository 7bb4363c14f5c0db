//! Tests of I1: claims skip the check for pending messages only while no message is pending. A note
//! in shared memory says whether messages are pending.

use anyhow::Result;
use idem_testkit::{Database, Session};

use super::fencing::acquire;

const PRESENCE: &str = "SELECT idem.pending_presence()";

/// Runs one pass of maintenance. Returns the note about pending messages (`some`, `quiet` or
/// `none`) after the pass.
async fn pass(session: &Session) -> Result<String> {
    session.run("CALL idem_maintain()").await?;
    session.text(PRESENCE).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_claim_respects_a_lease_after_quiet_passes() -> Result<()> {
    let db = Database::without_worker("presence").await?;
    let (session, claimer) = (db.connect().await?, db.connect().await?);
    assert_eq!(
        session.text(PRESENCE).await?,
        "some",
        "the presence is unknown after the start"
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
    // The note stays `some` while a message is pending, however many passes run.
    for _ in 0..3 {
        assert_eq!(pass(&session).await?, "some");
    }
    Ok(())
}

/// I1: when a writer sets the note to `some` between two passes, the maintainer counts quiet passes
/// from the beginning. A pass does not set `none` while a writer holds a lock on the table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_presence_is_cleared_only_after_a_whole_quiet_pass() -> Result<()> {
    let db = Database::without_worker("presence").await?;
    let (session, writer) = (db.connect().await?, db.connect().await?);
    assert_eq!(pass(&session).await?, "quiet");
    writer
        .run("BEGIN; SELECT idem_receive('m', 'work', '1'::jsonb)")
        .await?;
    assert_eq!(
        session.text(PRESENCE).await?,
        "some",
        "the note is made before the commit"
    );
    assert_eq!(pass(&session).await?, "quiet", "the row is not visible yet");
    assert_eq!(
        pass(&session).await?,
        "quiet",
        "the writer still locks the table"
    );
    writer.run("COMMIT").await?;
    assert_eq!(
        pass(&session).await?,
        "quiet",
        "the note is not cleared while a message is pending"
    );
    assert_eq!(
        session.text("SELECT idem_try_claim('m', 'work')").await?,
        "t"
    );
    assert_eq!(
        session.text("SELECT count(*) FROM idem.pending").await?,
        "0",
        "the claim checked for pending messages"
    );
    Ok(())
}

/// I1: a restore or logical replication writes into the tables without the functions of idem. Such
/// a row must also set the note to `some`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_rows_copied_into_pending_table_are_detected() -> Result<()> {
    let db = Database::without_worker("presence").await?;
    let session = db.connect().await?;
    acquire(&session, "m", "1 hour").await?;
    session
        .run("CREATE TABLE copy AS TABLE idem.pending_0; TRUNCATE idem.pending_0")
        .await?;
    pass(&session).await?;
    assert_eq!(pass(&session).await?, "none");
    session
        .run(
            "SET session_replication_role = replica; INSERT INTO idem.pending_0 TABLE copy; \
             RESET session_replication_role; SELECT idem_finish_restore()",
        )
        .await?;
    assert_eq!(session.text(PRESENCE).await?, "some");
    let refusal = session
        .refused("SELECT idem_try_claim('m', 'work')")
        .await?;
    assert_eq!(refusal.sqlstate, "55P03", "{refusal:?}");
    Ok(())
}
