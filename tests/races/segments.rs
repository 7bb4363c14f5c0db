//! Tests of a claimer that writes two segments, and of another claimer that writes the second one
//! only, because the segment has advanced in between.

use anyhow::Result;
use idem_testkit::ring::{build_filters, make_segment_due, rotate};
use idem_testkit::{Database, Pause, Session};
use tokio::task::JoinHandle;

use super::claims::start;

const CLAIM: &str = "SELECT idem_try_claim('m', 'orders')";

/// Two claimers of one message. The older one has inserted its row into segment 0, and waits in
/// segment 1 for the newer one, whose transaction is open.
struct Claimers {
    older: JoinHandle<Result<String>>,
    newer: Session,
}

async fn claimers(db: &Database) -> Result<Claimers> {
    let (maintainer, open, older, newer) = (
        db.connect().await?,
        db.connect().await?,
        db.connect().await?,
        db.connect().await?,
    );
    maintainer
        .run("SELECT idem_try_claim('warm', 'orders')")
        .await?;
    build_filters(&maintainer).await?;
    open.run("BEGIN; SELECT idem_try_claim('open', 'orders')")
        .await?;
    make_segment_due(&maintainer, "standard").await?;
    assert_eq!(rotate(&maintainer, "standard").await?, "advancing");
    // The fence lists only the open transaction. The older claimer enters after that.
    assert_eq!(rotate(&maintainer, "standard").await?, "waiting");
    let pause = Pause::hold(db, "claim: before insert").await?;
    older
        .run("SET idem.pause_at = 'claim: before insert'")
        .await?;
    let older_pid = older.pid().await?;
    let older = start(older, format!("BEGIN; {CLAIM}; COMMIT"));
    pause.until_reached(older_pid).await?;
    open.run("COMMIT").await?;
    assert_eq!(rotate(&maintainer, "standard").await?, "advanced");
    assert_eq!(newer.text(&format!("BEGIN; {CLAIM}")).await?, "t");
    pause.release().await?;
    db.until_blocked(older_pid).await?;
    Ok(Claimers { older, newer })
}

/// Returns the segments of the rows of the message.
async fn segments(session: &Session) -> Result<String> {
    session
        .text(
            "SELECT string_agg(segment::text, ',' ORDER BY segment) FROM idem.inbox_standard_0
              WHERE key = idem.key_of('m')",
        )
        .await
}

/// I1, I8: the newer claimer commits. The older one is a duplicate and deletes its row in segment
/// 0.
#[tokio::test]
async fn i1_older_claimer_is_a_duplicate_of_the_newer_one() -> Result<()> {
    let db = Database::without_worker("segment_duplicate").await?;
    let Claimers { older, newer } = claimers(&db).await?;
    newer.run("COMMIT").await?;
    assert_eq!(older.await??, "f");
    assert_eq!(segments(&newer).await?, "1");
    Ok(())
}

/// I1: the newer claimer rolls back, so the older one claims the message. After the conflict it
/// looks only into segment 1. In segment 0 it would find its own row and take it for a claim.
#[tokio::test]
async fn i1_older_claimer_claims_after_a_rollback() -> Result<()> {
    let db = Database::without_worker("segment_rollback").await?;
    let Claimers { older, newer } = claimers(&db).await?;
    newer.run("ROLLBACK").await?;
    assert_eq!(older.await??, "t");
    assert_eq!(segments(&newer).await?, "0,1");
    assert_eq!(newer.text(CLAIM).await?, "f");
    Ok(())
}
