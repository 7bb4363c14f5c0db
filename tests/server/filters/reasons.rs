//! Slices without a complete filter: the view idem.filters shows the reason, and their claims are
//! found.

use anyhow::{Result, ensure};
use idem_testkit::ring::build_filters;
use idem_testkit::{Database, Session};

use super::{claim, seal, status};

async fn reason(session: &Session, slice: i32) -> Result<String> {
    let sql =
        format!("SELECT reason FROM idem.filters WHERE ring = 'standard' AND slice = {slice}");
    session.text(&sql).await
}

/// I1: the view shows a filter that waits for transactions. A claim in a savepoint that was rolled
/// back, and is repeated while the filter is built, is found.
#[tokio::test]
async fn i1_claim_repeated_during_the_build_is_found() -> Result<()> {
    let db = Database::without_worker("repeated_claim").await?;
    let (session, claimer) = (db.connect().await?, db.connect().await?);
    let repeat = "SELECT idem_try_claim('m', 'd')";
    claimer.run("BEGIN; SAVEPOINT s").await?;
    assert_eq!(claimer.text(repeat).await?, "t");
    session
        .run("SELECT count(idem.build_filters(1)) FROM generate_series(1, 40)")
        .await?;
    assert_eq!(status(&session, 0).await?, "building");
    assert_eq!(
        reason(&session, 0).await?,
        "it waits for transactions that were writing to the slice"
    );
    claimer.run("ROLLBACK TO s").await?;
    assert_eq!(claimer.text(repeat).await?, "t");
    claimer.run("COMMIT").await?;
    build_filters(&session).await?;
    seal(&session).await?;
    ensure!(!claim(&session, "m").await?);
    Ok(())
}

/// I1: a row that a command inserts invalidates the filter also if the command is rolled back. The
/// next filter has the claims of the slice.
#[tokio::test]
async fn i1_command_that_is_rolled_back_invalidates_the_filter() -> Result<()> {
    let db = Database::without_worker("rolled_back_row").await?;
    let session = db.connect().await?;
    ensure!(claim(&session, "m").await?);
    seal(&session).await?;
    build_filters(&session).await?;
    session
        .run(
            "BEGIN;
             UPDATE idem.inbox_standard_0 SET claimed_at = claimed_at;
             ROLLBACK",
        )
        .await?;
    assert_eq!(status(&session, 0).await?, "none");
    assert_eq!(
        reason(&session, 0).await?,
        "another command than a claim inserted rows; the filter is built again"
    );
    ensure!(!claim(&session, "m").await?);
    build_filters(&session).await?;
    assert_eq!(reason(&session, 0).await?, "NULL");
    ensure!(!claim(&session, "m").await?);
    Ok(())
}
