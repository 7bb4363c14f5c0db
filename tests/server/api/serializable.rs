//! Tests of SERIALIZABLE: the functions that consumers use do not read by the snapshot of the
//! transaction, so they must not cause serialization failures between transactions.

use anyhow::Result;
use idem_testkit::Database;

/// The statements of a consumer. The messages `again 1` to `again 7` were received, completed and
/// forgotten before, so that look-ups find dead versions of their rows.
const STATEMENTS: &[&str] = &[
    "SELECT idem_try_claim('new', 'a new destination')",
    "SELECT idem_try_claim('again 1', 'work')",
    "SELECT idem_try_claim('again 1', 'work')",
    "SELECT outcome FROM idem_claim('again 2', 'work', false)",
    "SELECT idem_try_claim_batch('{again 3,again 4}', 'work')",
    "SELECT idem_receive('again 5', 'work', '1')",
    "SELECT idem_try_claim('again 5', 'work')",
    r#"SELECT idem_try_record('again 6', 'work', '{"topic": "t", "payload": 1}')"#,
    "SELECT idem_complete('again 7', 'work', token) FROM idem_acquire('again 7', 'work')",
    "SELECT * FROM idem_effects('again 6', 'work')",
    "SELECT idem_send('t', '1')",
    "SELECT idem_begin_call('again 6', 'work', 'charge')",
    "SELECT idem_finish_call('again 6', 'work', 'charge')",
];

/// I1: the functions that consumers use take no predicate locks. A predicate lock on a table that
/// other consumers write can cause 40001.
#[tokio::test]
async fn i1_claims_take_no_predicate_locks() -> Result<()> {
    let db = Database::with_idem("serializable").await?;
    let (session, reader) = (db.connect().await?, db.connect().await?);
    // The snapshot of the reader prevents the removal of the row versions that become dead below.
    reader
        .run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        .await?;
    session
        .run(
            "SELECT idem_receive('again ' || n, 'work', '1') FROM generate_series(1, 7) n;
             SELECT idem_try_claim('again ' || n, 'work') FROM generate_series(1, 7) n;
             SELECT idem_try_claim('again ' || n, 'again ' || n) FROM generate_series(1, 7) n",
        )
        .await?;
    session
        .run("SELECT idem_forget('again ' || n, 'work') FROM generate_series(1, 7) n")
        .await?;
    for sql in STATEMENTS {
        // Invalidate the cached state of the rings, so that the statement must also load it.
        session
            .run("SELECT idem.invalidate('idem.ring'::regclass)")
            .await?;
        session
            .run("BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT 1")
            .await?;
        session.run(sql).await?;
        let locked = session
            .text(
                "SELECT string_agg(DISTINCT relation::regclass::text, ', ') FROM pg_locks
                  WHERE pid = pg_backend_pid() AND mode = 'SIReadLock'",
            )
            .await?;
        assert_eq!(locked, "NULL", "{sql}");
        session.run("COMMIT").await?;
    }
    Ok(())
}
