//! Tests of an index that is rebuilt while a backend is about to use it.

use anyhow::Result;
use idem_testkit::{Database, Pause};

use super::claims::start;

/// I3: REINDEX CONCURRENTLY replaces and drops an index between the start of `idem_effects` and its
/// lock on the table. The function still finds the effects.
#[tokio::test]
async fn i3_effects_are_found_while_their_index_is_replaced() -> Result<()> {
    let db = Database::with_idem("reindex").await?;
    let (reader, admin, old) = (
        db.connect().await?,
        db.connect().await?,
        db.connect().await?,
    );
    reader
        .run(
            r#"BEGIN;
               SELECT idem_try_record('m', 'orders', '[{"topic": "t", "payload": 1}]');
               COMMIT;
               SELECT idem_is_claimed('m', 'orders')"#,
        )
        .await?;
    // While this session has its snapshot, the rebuild cannot replace the index.
    old.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        .await?;
    let pid = admin.pid().await?;
    let rebuilt = start(admin, "REINDEX INDEX CONCURRENTLY idem.outbox_0_source");
    db.until_blocked(pid).await?;

    let about_to_lock = Pause::hold(&db, "table: before lock").await?;
    about_to_lock.arm(&reader).await?;
    let pid = reader.pid().await?;
    let effects = start(reader, "SELECT count(*) FROM idem_effects('m', 'orders')");
    about_to_lock.until_reached(pid).await?;
    old.run("COMMIT").await?;
    rebuilt.await??;
    about_to_lock.release().await?;
    assert_eq!(effects.await??, "1");
    Ok(())
}
