//! Tests of the pause points.

use anyhow::Result;
use idem_testkit::{Database, Pause};

/// A session that has enabled the pause point pauses there and continues when the test releases it.
/// A session that has not enabled the pause point does not pause.
#[tokio::test]
async fn session_waits_at_its_pause_point_until_it_is_released() -> Result<()> {
    let db = Database::with_idem("pause").await?;
    let (armed, other) = (db.connect().await?, db.connect().await?);
    let point = Pause::hold(&db, "claim: before insert").await?;
    point.arm(&armed).await?;

    let pid = armed.pid().await?;
    let claim = tokio::spawn(async move {
        armed
            .text("SELECT idem_try_claim('m-1', 'orders') FROM generate_series(1, 1)")
            .await
    });
    point.until_reached(pid).await?;
    assert_eq!(
        other
            .text("SELECT idem_try_claim('m-2', 'stock') FROM generate_series(1, 1)")
            .await?,
        "t"
    );
    assert!(!claim.is_finished());

    point.release().await?;
    assert_eq!(claim.await??, "t");
    Ok(())
}
