//! Tests of I8: a duplicate is an outcome, not an error. A duplicate aborts nothing, logs nothing
//! above DEBUG, assigns no transaction id and writes no WAL.

use anyhow::{Result, ensure};
use idem_testkit::presence::until_none;
use idem_testkit::{Database, Session};

/// The functions that can find a duplicate, each with its result.
const DUPLICATES: [(&str, &str); 15] = [
    ("idem_try_claim('m1'::text, 'orders')", "f"),
    (
        "idem_try_claim('0192f3a4-0000-7abc-8def-0123456789ab'::uuid, 'orders')",
        "f",
    ),
    (
        "idem_try_claim_batch(ARRAY['m2', 'm1', 'm1'], 'orders')",
        "{f,f,f}",
    ),
    (
        "idem_try_claim_uuid_batch(
             ARRAY['0192f3a4-0000-7abc-8def-0123456789ab']::uuid[], 'orders')",
        "{f}",
    ),
    ("(idem_claim('m1', 'orders')).outcome", "duplicate"),
    (
        "(idem_claim('m1', 'orders', wait => false)).outcome",
        "duplicate",
    ),
    (
        r"(idem_claim('m1', 'orders', fingerprint => '\x02')).outcome",
        "mismatch",
    ),
    (
        r#"idem_try_record('m2', 'orders', '{"topic": "t", "payload": 1}')"#,
        "f",
    ),
    ("(idem_effects('m2', 'orders')).topic", "t"),
    // The messages of the remaining functions are claimed, waiting or leased.
    ("idem_receive('m1', 'orders', '1'::jsonb)", "f"),
    ("idem_receive('waiting', 'orders', '1'::jsonb)", "f"),
    (
        "(idem_claim('leased', 'orders', wait => false)).outcome",
        "in_progress",
    ),
    ("(idem_acquire('m1', 'orders')).outcome", "duplicate"),
    ("(idem_acquire('leased', 'orders')).outcome", "in_progress"),
    ("(idem_begin_call('m1', 'orders', 'charge')).response", "7"),
];

async fn quiet_server() -> Result<(Database, Session)> {
    let db = Database::without_worker("quiet").await?;
    let session = db.connect().await?;
    Ok((db, session))
}

/// Starts a quiet server, and creates the messages of [`DUPLICATES`].
async fn quiet() -> Result<(Database, Session)> {
    let (db, session) = quiet_server().await?;
    session
        .run(
            r#"SELECT idem_claim('m1', 'orders', fingerprint => '\x01');
               SELECT idem_try_record('m2', 'orders', '{"topic": "t", "payload": 1}');
               SELECT idem_try_claim('0192f3a4-0000-7abc-8def-0123456789ab'::uuid, 'orders');
               SELECT idem_receive('waiting', 'orders', '1'::jsonb);
               SELECT idem_acquire('leased', 'orders', '1 day');
               SELECT idem_begin_call('m1', 'orders', 'charge');
               SELECT idem_finish_call('m1', 'orders', 'charge', '7');
               CREATE TABLE business (n integer)"#,
        )
        .await?;
    session.run("CHECKPOINT").await?;
    Ok((db, session))
}

/// Returns the bytes of WAL that `work` writes: the minimum of up to five rounds, because the
/// server itself sometimes writes a record. The records of `work` are in every round.
async fn wal_bytes(
    session: &Session,
    mut work: impl AsyncFnMut(usize) -> Result<()>,
) -> Result<i64> {
    let mut least = i64::MAX;
    for round in 0..5 {
        let before = session.text("SELECT pg_current_wal_insert_lsn()").await?;
        work(round).await?;
        let written = session
            .text(&format!(
                "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '{before}')::bigint"
            ))
            .await?;
        least = least.min(written.parse()?);
        if least == 0 {
            break;
        }
    }
    Ok(least)
}

/// I8: a duplicate assigns no transaction id and writes no WAL, at every isolation level.
#[tokio::test]
async fn i8_duplicate_assigns_no_xid_and_writes_no_wal() -> Result<()> {
    let (_db, session) = quiet().await?;
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        for (call, result) in DUPLICATES {
            let written = wal_bytes(&session, async |_| {
                for _ in 0..20 {
                    let output = session
                        .text(&format!(
                            "BEGIN ISOLATION LEVEL {level}; SELECT {call}; SAVEPOINT s;
                             SELECT {call}; RELEASE SAVEPOINT s;
                             SELECT pg_current_xact_id_if_assigned() IS NULL; COMMIT"
                        ))
                        .await?;
                    ensure!(
                        output == format!("{result}\n{result}\nt"),
                        "{level}: {call}: {output}"
                    );
                }
                Ok(())
            })
            .await?;
            assert_eq!(written, 0, "bytes of WAL: {level}: {call}");
        }
    }

    // Check that the measurement works: the first claim of an id assigns a transaction id and
    // writes one or two WAL records.
    let claim = async |round: usize| {
        let output = session
            .text(&format!(
                "BEGIN; SELECT idem_try_claim('new {round}', 'orders');
                 SELECT pg_current_xact_id_if_assigned() IS NULL; COMMIT"
            ))
            .await?;
        ensure!(output == "t\nf", "{output}");
        Ok(())
    };
    let written = wal_bytes(&session, claim).await?;
    assert!(written > 100, "a claim has written {written} bytes of WAL");
    Ok(())
}

/// I8: while no message is pending, a batch looks its messages up together. If all of them are
/// duplicates, it assigns no transaction id and writes no WAL.
#[tokio::test]
async fn i8_batch_of_duplicates_assigns_no_xid_and_writes_no_wal() -> Result<()> {
    let (_db, session) = quiet_server().await?;
    let batch = "SELECT idem_try_claim_batch(
                     ARRAY(SELECT 'm ' || n FROM generate_series(1, 10) n), 'orders')";
    assert_eq!(session.text(batch).await?, "{t,t,t,t,t,t,t,t,t,t}");
    until_none(&session).await?;
    session.run("CHECKPOINT").await?;
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        let written = wal_bytes(&session, async |_| {
            let output = session
                .text(&format!(
                    "BEGIN ISOLATION LEVEL {level}; {batch};
                     SELECT pg_current_xact_id_if_assigned() IS NULL; COMMIT"
                ))
                .await?;
            ensure!(output == "{f,f,f,f,f,f,f,f,f,f}\nt", "{level}: {output}");
            Ok(())
        })
        .await?;
        assert_eq!(written, 0, "bytes of WAL: {level}");
    }
    Ok(())
}

/// I8: a duplicate that waited for the claim of another transaction assigns no transaction id.
#[tokio::test]
async fn i8_duplicate_after_a_wait_assigns_no_xid() -> Result<()> {
    let (db, session) = quiet().await?;
    let first = db.connect().await?;
    let pid = session.pid().await?;
    for (n, level) in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]
        .into_iter()
        .enumerate()
    {
        first
            .run(&format!(
                "BEGIN; SELECT idem_try_claim('waited for {n}', 'orders')"
            ))
            .await?;
        let waits = format!(
            "BEGIN ISOLATION LEVEL {level}; SELECT 1;
             SELECT idem_try_claim('waited for {n}', 'orders');
             SELECT pg_current_xact_id_if_assigned() IS NULL; COMMIT"
        );
        let (output, committed) = tokio::join!(session.text(&waits), async {
            db.until_blocked(pid).await?;
            first.run("COMMIT").await
        });
        committed?;
        assert_eq!(output?, "1\nf\nt", "{level}");
    }
    Ok(())
}

/// I8: a duplicate aborts nothing and logs nothing above DEBUG.
#[tokio::test]
async fn i8_duplicate_aborts_nothing_and_logs_nothing() -> Result<()> {
    let (db, session) = quiet().await?;
    session.run("SET client_min_messages = debug5").await?;
    // Execute each function once before the test. The first execution fills the caches of the
    // session and logs messages about it.
    for (call, _) in DUPLICATES {
        session.run(&format!("SELECT {call}")).await?;
    }
    let logged = db.cluster().log()?;
    drop(session.notices());
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        session
            .run(&format!(
                "BEGIN ISOLATION LEVEL {level}; INSERT INTO business VALUES (1)"
            ))
            .await?;
        for (call, result) in DUPLICATES {
            assert_eq!(
                session.text(&format!("SELECT {call}")).await?,
                result,
                "{level}: {call}"
            );
        }
        session
            .run("INSERT INTO business VALUES (2); COMMIT")
            .await?;
    }
    assert_eq!(
        session
            .text("SELECT count(*), sum(n) FROM business")
            .await?,
        "6|9",
        "the other writes of the transactions are committed"
    );
    let notices = session.notices();
    ensure!(!notices.is_empty(), "the session got no debug messages");
    let loud: Vec<_> = notices
        .iter()
        .filter(|notice| !notice.severity.starts_with("DEBUG"))
        .collect();
    assert!(loud.is_empty(), "{loud:?}");
    assert_eq!(
        db.cluster().log()?,
        logged,
        "the log of the server has no new lines"
    );
    Ok(())
}
