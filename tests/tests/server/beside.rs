//! What goes on beside the claims: index rebuilds, sessions of replication tools, transactions that
//! read for long.

use anyhow::{Result, ensure};
use idem_tests::harness::Database;

/// REINDEX CONCURRENTLY waits for a transaction with a claim, with an index that takes no rows yet:
/// claims pass it over.
#[tokio::test]
async fn i1_claims_go_on_while_an_index_is_rebuilt() -> Result<()> {
    let db = Database::with_idem("rebuilt").await?;
    let (holder, rebuilder, claimer) = (
        db.connect().await?,
        db.connect().await?,
        db.connect().await?,
    );
    holder.run("SELECT idem_configure('d', '7 days')").await?;
    holder.run("BEGIN").await?;
    assert_eq!(holder.text("SELECT idem_try_claim('a', 'd')").await?, "t");
    let slice = holder
        .text("SELECT format('idem.inbox_standard_%s_pkey', current) FROM idem.ring WHERE name = 'standard'")
        .await?;
    let pid = rebuilder.pid().await?;
    let rebuild = tokio::spawn(async move {
        rebuilder
            .run(&format!("REINDEX INDEX CONCURRENTLY {slice}"))
            .await
    });
    db.until_blocked(pid).await?;
    assert_eq!(
        claimer
            .text("SELECT count(*) FROM pg_index WHERE indexrelid::regclass::text LIKE '%ccnew' AND NOT indisready")
            .await?,
        "1",
        "the new index takes no rows yet"
    );
    assert_eq!(claimer.text("SELECT idem_try_claim('b', 'd')").await?, "t");
    assert_eq!(claimer.text("SELECT idem_try_claim('b', 'd')").await?, "f");
    holder.run("COMMIT").await?;
    rebuild.await??;
    for id in ["a", "b"] {
        assert_eq!(
            claimer
                .text(&format!("SELECT idem_try_claim('{id}', 'd')"))
                .await?,
            "f"
        );
    }
    Ok(())
}

/// Claims write without the executor, which alone could evaluate an expression: refused, and
/// nobody's backend is lost.
#[tokio::test]
async fn an_index_that_claims_cannot_keep_up_is_refused() -> Result<()> {
    let db = Database::with_idem("expression").await?;
    let session = db.connect().await?;
    let pid = session.pid().await?;
    for index in [
        "CREATE INDEX strange ON idem.inbox_standard_0 (upper(id))",
        "CREATE INDEX strange ON idem.inbox_standard_0 (claimed_at) WHERE id IS NULL",
    ] {
        session.run(index).await?;
        let refusal = session.refused("SELECT idem_try_claim('a', 'd')").await?;
        assert_eq!(refusal.sqlstate, "0A000", "{refusal:?}");
        ensure!(!refusal.hint.is_empty());
        session.run("DROP INDEX idem.strange").await?;
    }
    assert_eq!(session.pid().await?, pid);
    session
        .run("CREATE INDEX fine ON idem.inbox_standard_0 (claimed_at)")
        .await?;
    assert_eq!(session.text("SELECT idem_try_claim('a', 'd')").await?, "t");
    assert_eq!(session.text("SELECT idem_try_claim('a', 'd')").await?, "f");
    Ok(())
}

/// Replication tools switch ordinary triggers off; a step that they do must be told to the claims
/// all the same.
#[tokio::test]
async fn i1_a_step_in_a_replica_session_is_told_to_the_claims() -> Result<()> {
    let db = Database::with_idem("replica").await?;
    let (warm, other, replica) = (
        db.connect().await?,
        db.connect().await?,
        db.connect().await?,
    );
    assert_eq!(warm.text("SELECT idem_try_claim('first', 'd')").await?, "t");
    replica
        .run("SET session_replication_role = replica; UPDATE idem.ring SET turned_at = turned_at - interval '30 days'")
        .await?;
    let turns = "SELECT turns FROM idem.ring WHERE name = 'standard'";
    let before: i64 = replica.text(turns).await?.parse()?;
    replica.run("CALL idem_maintain()").await?;
    ensure!(
        replica.text(turns).await?.parse::<i64>()? > before,
        "the ring has turned"
    );
    assert_eq!(other.text("SELECT idem_try_claim('once', 'd')").await?, "t");
    assert_eq!(warm.text("SELECT idem_try_claim('once', 'd')").await?, "f");
    Ok(())
}

/// A reader holds no claim up, so no fence waits for it; it must see a turn by itself, in the
/// middle of its transaction.
#[tokio::test]
async fn i3_a_long_reading_transaction_answers_as_of_now() -> Result<()> {
    let db = Database::with_idem("reading").await?;
    let (reader, writer) = (db.connect().await?, db.connect().await?);
    writer.run("SELECT idem_try_claim('first', 'd')").await?;
    reader
        .run("PREPARE claimed AS SELECT idem_is_claimed('m', 'd')")
        .await?;
    reader
        .run("PREPARE facts AS SELECT count(*) FROM idem_effects('m', 'd')")
        .await?;
    reader.run("BEGIN").await?;
    // Both are planned now: planning takes locks, and those would bring the news by themselves.
    assert_eq!(reader.text("EXECUTE facts").await?, "0");
    assert_eq!(reader.text("EXECUTE claimed").await?, "f");
    // One turn, and no more: the claim goes into the slice that the state before does not probe.
    writer
        .run("UPDATE idem.ring SET turned_at = turned_at - interval '30 days' WHERE name = 'standard'")
        .await?;
    writer.run("CALL idem_maintain()").await?;
    assert_eq!(
        writer
            .text("SELECT turns FROM idem.ring WHERE name = 'standard'")
            .await?,
        "1"
    );
    assert_eq!(
        writer
            .text("SELECT idem_try_record('m', 'd', '{\"topic\": \"t\", \"payload\": 1}')")
            .await?,
        "t"
    );
    assert_eq!(reader.text("EXECUTE claimed").await?, "t");
    assert_eq!(reader.text("EXECUTE facts").await?, "1");
    Ok(())
}
