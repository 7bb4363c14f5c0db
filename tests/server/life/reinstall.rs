//! Tests of DROP EXTENSION and a new CREATE EXTENSION, with sessions that have cached the state of
//! the first extension.

use anyhow::Result;
use idem_testkit::Database;

use super::{claim, effects, record};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_sessions_use_the_new_tables_after_reinstallation() -> Result<()> {
    let db = Database::with_idem("reinstalled").await?;
    let owner = db.connect().await?;
    let sessions = [db.connect().await?, db.connect().await?];
    // Each session has cached the rings, the tables and the destination.
    assert_eq!(record(&sessions[0], "m1").await?, "t");
    assert_eq!(record(&sessions[1], "m1").await?, "f");

    for schema in ["public", "api"] {
        owner
            .run(&format!(
                "DROP EXTENSION idem; CREATE SCHEMA IF NOT EXISTS {schema}"
            ))
            .await?;
        for session in &sessions {
            let refusal = session
                .refused("SELECT idem_try_claim('m1', 'orders')")
                .await?;
            assert_eq!(refusal.sqlstate, "42883", "{refusal:?}");
        }
        owner
            .run(&format!("CREATE EXTENSION idem SCHEMA {schema}"))
            .await?;
        for session in &sessions {
            session.run("SET search_path = public, api").await?;
        }
        // Claim for the destination `invoices` first, so that `invoices` gets the old number of
        // `orders`.
        assert_eq!(
            sessions[0]
                .text("SELECT idem_try_claim('m1', 'invoices')")
                .await?,
            "t"
        );
        assert_eq!(
            record(&sessions[0], "m1").await?,
            "t",
            "the new extension has no claim of this message"
        );
        assert_eq!(
            claim(&sessions[1], "m1").await?,
            "f",
            "the other session finds the new claim"
        );
        assert_eq!(effects(&sessions[1], "m1").await?.lines().count(), 1);
        assert_eq!(
            sessions[1]
                .text("SELECT destination, id FROM idem.inbox ORDER BY 1")
                .await?,
            "invoices|m1\norders|m1"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i2_drop_waits_for_claims_and_can_be_rolled_back() -> Result<()> {
    let db = Database::with_idem("dropped").await?;
    let (owner, consumer) = (db.connect().await?, db.connect().await?);
    owner.run("BEGIN; DROP EXTENSION idem; ROLLBACK").await?;
    consumer.run("BEGIN").await?;
    assert_eq!(claim(&consumer, "m1").await?, "t");
    let pid = owner.pid().await?;
    let dropping = tokio::spawn(async move { owner.run("DROP EXTENSION idem").await });
    db.until_blocked(pid).await?;
    consumer.run("COMMIT").await?;
    dropping.await??;
    assert_eq!(
        consumer
            .text("SELECT to_regnamespace('idem') IS NULL")
            .await?,
        "t",
        "DROP EXTENSION removes the schema"
    );
    Ok(())
}

/// A transaction that has claimed, and then drops and creates the extension, reads the new tables.
#[tokio::test]
async fn i1_reader_uses_the_new_tables_in_the_same_transaction() -> Result<()> {
    let db = Database::with_idem("reinstalled_inside").await?;
    let session = db.connect().await?;
    session
        .run("BEGIN; SELECT idem_try_claim('m', 'd'); DROP EXTENSION idem; CREATE EXTENSION idem")
        .await?;
    // This claim creates the destination, so the next functions search the slices.
    assert_eq!(session.text("SELECT idem_try_claim('n', 'd')").await?, "t");
    assert_eq!(session.text("SELECT idem_is_claimed('m', 'd')").await?, "f");
    assert_eq!(
        session
            .text("SELECT count(*) FROM idem_effects('m', 'd')")
            .await?,
        "0"
    );
    assert_eq!(session.text("SELECT idem_try_claim('m', 'd')").await?, "t");
    session.run("COMMIT").await?;
    Ok(())
}
