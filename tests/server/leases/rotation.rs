//! The rotation of pending messages keeps live rows and removes dead rows, also under an old
//! snapshot.

use anyhow::{Result, ensure};
use idem_testkit::{Database, Session};

use super::fencing::acquire;

/// Receives 40,000 messages. After [`churn`] has claimed the messages, all their rows are dead, and
/// an old snapshot prevents VACUUM from removing the dead rows.
const CHURN: &str = "SELECT count(idem_receive(n::text, 'churn', '1'::jsonb)) \
                     FROM generate_series($1::int4, $1::int4 + 39999) n";

/// Receives and claims 40,000 messages.
pub async fn churn(session: &Session, from: i32) -> Result<()> {
    session.query(CHURN, &[&from]).await?;
    let claims = "SELECT count(*) FILTER (WHERE idem_try_claim(n::text, 'churn')) \
                  FROM generate_series($1::int4, $1::int4 + 39999) n";
    let claimed: i64 = session.query_one(claims, &[&from]).await?.get(0);
    ensure!(claimed == 40_000, "{claimed} claimed");
    Ok(())
}

const ROTATE: &str = "SELECT idem.rotate_pending()";

/// Rotates the tables.
async fn rotate(session: &Session) -> Result<()> {
    let rotated = session.text(ROTATE).await?;
    ensure!(rotated == "t", "the tables have not rotated");
    Ok(())
}

/// Creates a database in which only the test rotates and vacuums the tables of pending messages. A
/// rotation does not wait for the lock of another process, and fails to rotate.
pub async fn database(name: &str) -> Result<Database> {
    let db = Database::without_worker(name).await?;
    db.connect()
        .await?
        .run(
            "ALTER TABLE idem.pending_0 SET (autovacuum_enabled = off);
             ALTER TABLE idem.pending_1 SET (autovacuum_enabled = off)",
        )
        .await?;
    Ok(db)
}

const CURRENT: &str = "SELECT current FROM idem.pending_rotation";

/// I7: the tables of pending messages stay small under an old snapshot, and live messages are kept.
#[tokio::test]
async fn i7_pending_stays_small_and_keeps_live_messages() -> Result<()> {
    let db = database("rotations").await?;
    let (session, old) = (db.connect().await?, db.connect().await?);
    old.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        .await?;
    let token = acquire(&session, "leased", "1 hour").await?;
    session
        .run("SELECT idem_receive('waits', 'work', '1'::jsonb, key => 'k')")
        .await?;
    assert_eq!(
        session.text(ROTATE).await?,
        "f",
        "no rotation is needed yet"
    );
    let alive = "SELECT seq, token, due_at, attempt, payload_slice, state, id, order_key \
                 FROM idem.pending_%s ORDER BY seq";
    let alive = async |session: &Session| {
        let current = session.text(CURRENT).await?;
        session.text(&alive.replace("%s", &current)).await
    };
    let before = alive(&session).await?;
    for round in 0..4 {
        churn(&session, round * 40_000).await?;
        let size = "SELECT max(pg_relation_size(t)) \
                    FROM unnest('{idem.pending_0, idem.pending_1}'::regclass[]) t";
        let bytes: i64 = session.text(size).await?.parse()?;
        ensure!(
            bytes < 12 * 1024 * 1024,
            "{bytes} bytes of pending messages in round {round}"
        );
        rotate(&session).await?;
    }
    assert_eq!(alive(&session).await?, before);
    // The lease of this message expired a year ago. This is longer than the longest retention, so
    // the next rotation drops the message.
    acquire(&session, "abandoned", "1 hour").await?;
    for slice in 0..2 {
        let long_ago = "SET due_at = clock_timestamp() - interval '1 year' WHERE id = 'abandoned'";
        session
            .run(&format!("UPDATE idem.pending_{slice} {long_ago}"))
            .await?;
    }
    churn(&session, 160_000).await?;
    rotate(&session).await?;
    assert_eq!(alive(&session).await?, before);
    assert_eq!(
        session.text("SELECT id FROM idem_next('work')").await?,
        "waits"
    );
    session
        .run(&format!("SELECT idem_complete('leased', 'work', {token})"))
        .await?;
    old.run("COMMIT").await?;
    Ok(())
}

#[tokio::test]
async fn rotation_neither_waits_for_nor_breaks_a_transaction() -> Result<()> {
    let db = database("rotation_locks").await?;
    let (session, holder) = (db.connect().await?, db.connect().await?);
    churn(&session, 0).await?;
    session
        .run("SELECT idem_receive('m', 'work', '1'::jsonb)")
        .await?;
    // The deletion of the message is not committed. A rotation would copy the message and redeliver
    // it, so it must not happen now.
    holder
        .run("BEGIN; SELECT idem_try_claim('m', 'work')")
        .await?;
    let before = session.text(CURRENT).await?;
    assert_eq!(session.text(ROTATE).await?, "f");
    assert_eq!(session.text(CURRENT).await?, before);
    holder.run("COMMIT").await?;
    session.run("CALL idem_maintain()").await?;
    let after = session.text(CURRENT).await?;
    assert_ne!(after, before);
    let bytes = format!("SELECT pg_relation_size('idem.pending_{after}')");
    assert_eq!(session.text(&bytes).await?, "0");
    assert_eq!(
        session
            .text("SELECT count(*) FROM idem_next('work')")
            .await?,
        "0"
    );

    // A transaction with a snapshot from before the rotation writes into the table that is current
    // now.
    holder
        .run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        .await?;
    churn(&session, 40_000).await?;
    rotate(&session).await?;
    assert_eq!(session.text(CURRENT).await?, before);
    holder
        .run("SELECT idem_receive('late', 'work', '1'::jsonb); COMMIT")
        .await?;
    assert_eq!(
        session.text("SELECT id FROM idem_next('work')").await?,
        "late"
    );
    Ok(())
}

#[tokio::test]
async fn rolled_back_rotation_has_no_effect() -> Result<()> {
    let db = database("rotation_back").await?;
    let session = db.connect().await?;
    session
        .run("SELECT idem_receive('m', 'work', '1'::jsonb)")
        .await?;
    churn(&session, 0).await?;
    let known = "SELECT idem_receive('m', 'work', '1'::jsonb)";
    session.run("BEGIN").await?;
    rotate(&session).await?;
    session.run("ROLLBACK").await?;
    assert_eq!(session.text(known).await?, "f");
    rotate(&session).await?;
    assert_eq!(session.text(CURRENT).await?, "1");
    assert_eq!(session.text(known).await?, "f");
    Ok(())
}
