//! Tests of claims during other activity: index rebuilds, sessions of replication tools, long
//! reading transactions.

use anyhow::{Result, ensure};
use idem_testkit::Database;

/// I1: while REINDEX CONCURRENTLY waits for a transaction with a claim, its new index is not ready
/// for inserts. Claims skip that index and continue.
#[tokio::test]
async fn i1_claims_continue_while_an_index_is_rebuilt() -> Result<()> {
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
        .text(
            "SELECT format('idem.inbox_standard_%s_pkey', slices[1]) FROM idem.ring
              WHERE name = 'standard'",
        )
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
            .text(
                "SELECT count(*) FROM pg_index WHERE indexrelid::regclass::text LIKE '%ccnew'
                    AND NOT indisready"
            )
            .await?,
        "1",
        "the new index is not ready for inserts"
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

/// A claim fails with 0A000 when a slice has an index with an expression or a predicate: claims
/// insert rows without the executor, and only the executor can evaluate an expression. The backend
/// continues to run.
#[tokio::test]
async fn index_with_expression_or_predicate_makes_claims_fail() -> Result<()> {
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

/// Functions fail with 58000 when a table of idem has a column that the library does not know. They
/// write all columns of a row, and would leave the unknown column without a value.
#[tokio::test]
async fn added_column_makes_writes_fail() -> Result<()> {
    let db = Database::with_idem("added_column").await?;
    let session = db.connect().await?;
    session
        .run("SELECT idem.intern_destination('orders')")
        .await?;
    for (table, call) in [
        (
            "idem.inbox_standard_0",
            "SELECT idem_try_claim('m', 'orders')",
        ),
        (
            "idem.pending_0",
            "SELECT idem_receive('m', 'orders', '1'::jsonb)",
        ),
        (
            "idem.payload_0",
            "SELECT idem_receive('m', 'orders', '1'::jsonb)",
        ),
        (
            "idem.call_standard_0",
            "SELECT idem_begin_call('m', 'orders', 'pay')",
        ),
        ("idem.outbox_0", "SELECT idem_send('t', '1'::jsonb)"),
    ] {
        session
            .run(&format!("BEGIN; ALTER TABLE {table} ADD COLUMN extra text"))
            .await?;
        let refusal = session.refused(call).await?;
        assert_eq!(refusal.sqlstate, "58000", "{table}: {refusal:?}");
        ensure!(!refusal.hint.is_empty());
        session.run("ROLLBACK").await?;
        session.run(&format!("BEGIN; {call}; ROLLBACK")).await?;
    }
    Ok(())
}

/// I1: the sessions of replication tools disable ordinary triggers. After a rotation step in such a
/// session, the claims of other sessions must still use the new state of the ring.
#[tokio::test]
async fn i1_rotation_in_a_replica_session_reaches_claims() -> Result<()> {
    let db = Database::with_idem("replica").await?;
    let (warm, other, replica) = (
        db.connect().await?,
        db.connect().await?,
        db.connect().await?,
    );
    assert_eq!(warm.text("SELECT idem_try_claim('first', 'd')").await?, "t");
    replica
        .run(
            "SET session_replication_role = replica;
             UPDATE idem.ring SET rotated_at = rotated_at - interval '30 days'",
        )
        .await?;
    let rotations = "SELECT rotations FROM idem.ring WHERE name = 'standard'";
    let before: i64 = replica.text(rotations).await?.parse()?;
    replica.run("CALL idem_maintain()").await?;
    ensure!(
        replica.text(rotations).await?.parse::<i64>()? > before,
        "the ring has not rotated"
    );
    assert_eq!(other.text("SELECT idem_try_claim('once', 'd')").await?, "t");
    assert_eq!(warm.text("SELECT idem_try_claim('once', 'd')").await?, "f");
    Ok(())
}

/// I3: the fence of a rotation does not wait for a transaction that only reads. The reading
/// transaction must itself notice a rotation that happens before its next statement.
#[tokio::test]
async fn i3_long_reading_transaction_notices_a_rotation() -> Result<()> {
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
    // Plan both statements before the rotation. Planning takes locks, and taking a lock would
    // process the invalidations.
    assert_eq!(reader.text("EXECUTE facts").await?, "0");
    assert_eq!(reader.text("EXECUTE claimed").await?, "f");
    // Rotate exactly once. A session with the old state of the ring does not probe the slice that
    // now takes the claim.
    writer
        .run(
            "UPDATE idem.ring SET rotated_at = rotated_at - interval '30 days'
              WHERE name = 'standard'",
        )
        .await?;
    writer.run("CALL idem_maintain()").await?;
    assert_eq!(
        writer
            .text("SELECT rotations FROM idem.ring WHERE name = 'standard'")
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
