//! `idem.stats` counts the results of committed transactions.

use anyhow::Result;
use idem_testkit::Database;

const COUNTED: &str =
    "SELECT string_agg(name || ' ' || value, ', ' ORDER BY name) FROM idem.stats WHERE value > 0";

/// The counters include committed transactions and do not include rolled back transactions.
#[tokio::test]
async fn counters_include_committed_transactions_only() -> Result<()> {
    let db = Database::with_idem("counters").await?;
    let (session, other) = (db.connect().await?, db.connect().await?);
    assert_eq!(session.text(COUNTED).await?, "NULL");
    let work = r#"BEGIN;
        SELECT idem_try_claim_batch(ARRAY['a', 'b', 'a'], 'orders');
        SELECT idem_record_effects('a', 'orders',
            '[{"topic": "t", "payload": 1}, {"topic": "t", "payload": 2}]');
        SELECT idem_send('t', '1'::jsonb);"#;
    session.run(&format!("{work} ROLLBACK")).await?;
    assert_eq!(session.text(COUNTED).await?, "NULL", "rolled back");
    session.run(work).await?;
    assert_eq!(other.text(COUNTED).await?, "NULL", "not committed yet");
    other
        .run(
            "SELECT idem_claim('z', 'elsewhere', wait => false);
             SELECT idem_claim('a', 'orders', wait => false)",
        )
        .await?;
    session.run("COMMIT").await?;
    session
        .run(
            "SELECT idem_claim('f', 'orders', fingerprint => '\\x01');
             SELECT idem_claim('f', 'orders', fingerprint => '\\x02')",
        )
        .await?;
    session
        .run("SELECT idem_replay_effects('a', 'orders')")
        .await?;
    assert_eq!(
        other.text(COUNTED).await?,
        "claimed 4, duplicates 1, effects_recorded 2, effects_replayed 2, effects_sent 1, \
         in_progress 1, mismatches 1"
    );
    Ok(())
}
