//! How a claim is inserted: by an ordinary insert if it is the first of its message in the hint of
//! the slice, and otherwise by a speculative insertion.

use anyhow::{Context, Result};
use idem_testkit::Session;
use idem_testkit::ring::build_filters;

use super::cluster;

/// Claims a new message. Returns the number of speculative insertions of the transaction: each
/// writes a confirmation into the WAL.
async fn speculative_insertions(session: &Session, id: &str) -> Result<String> {
    let before = session.text("SELECT pg_current_wal_flush_lsn()").await?;
    let claimed = session
        .text(&format!(
            "BEGIN; SELECT idem_try_claim('{id}', 'd'); SELECT pg_current_xact_id(); COMMIT"
        ))
        .await?;
    let xid = claimed
        .strip_prefix("t\n")
        .with_context(|| format!("{id}: {claimed}"))?;
    let confirmations = format!(
        "SELECT count(*) FILTER (WHERE record_type LIKE 'HEAP_CONFIRM%')
           FROM pg_get_wal_records_info('{before}', pg_current_wal_flush_lsn())
          WHERE xid::text = '{xid}' HAVING count(*) > 0"
    );
    session.text(&confirmations).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_claim_in_the_hint_is_an_ordinary_insert() -> Result<()> {
    let server = cluster("filters-inserts")?.start()?;
    let session = Session::in_database_with_idem(&server, "shop").await?;
    session.run("CREATE EXTENSION pg_walinspect").await?;
    session.run("SELECT idem.intern_destination('d')").await?;
    assert_eq!(speculative_insertions(&session, "no hint").await?, "1");
    build_filters(&session).await?;
    assert_eq!(speculative_insertions(&session, "new").await?, "0");
    // The hint keeps a claim that was rolled back.
    session
        .run("BEGIN; SELECT idem_try_claim('again', 'd'); ROLLBACK")
        .await?;
    assert_eq!(speculative_insertions(&session, "again").await?, "1");
    Ok(())
}

/// Rows that are inserted and deleted again would reach subscribers, and an insert of a key that
/// exists would stop them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_of_a_publisher_is_a_speculative_insertion() -> Result<()> {
    let server = cluster("filters-publisher")?
        .setting("wal_level", "logical")
        .start()?;
    let session = Session::in_database_with_idem(&server, "shop").await?;
    session.run("CREATE EXTENSION pg_walinspect").await?;
    session.run("SELECT idem.intern_destination('d')").await?;
    build_filters(&session).await?;
    assert_eq!(speculative_insertions(&session, "new").await?, "1");
    Ok(())
}
