//! I8: a duplicate is an outcome, not an error. It aborts nothing, logs nothing above DEBUG,
//! assigns no transaction id and writes nothing to the log.

use std::sync::Arc;

use anyhow::{Result, ensure};
use idem_cluster::{Cluster, Install};
use idem_tests::harness::{Database, Session};

/// Every way to meet a duplicate: one call each, with its answer.
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
        "idem_try_claim_uuid_batch(ARRAY['0192f3a4-0000-7abc-8def-0123456789ab']::uuid[], 'orders')",
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
    // Claimed, received and waiting, leased.
    ("idem_receive('m1', 'orders', '1'::jsonb)", "f"),
    ("idem_receive('waiting', 'orders', '1'::jsonb)", "f"),
    ("idem_receive('leased', 'orders', '1'::jsonb)", "f"),
    ("(idem_acquire('m1', 'orders')).outcome", "duplicate"),
    ("(idem_acquire('leased', 'orders')).outcome", "in_progress"),
    ("(idem_begin_call('m1', 'orders', 'charge')).response", "7"),
];

/// Nothing else may write here: a server of its own, without workers.
async fn quiet() -> Result<(Database, Session)> {
    let cluster = Cluster::builder(&Install::from_env()?)
        .name("quiet")
        .setting("shared_buffers", "32MB")
        .setting("autovacuum", "off")
        .setting("checkpoint_timeout", "1h")
        .setting("idem.databases", "none")
        .start()?;
    let db = Database::with_idem_in(Arc::new(cluster), "quiet").await?;
    let session = db.connect().await?;
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

/// Bytes of log between two moments, while `work` runs again and again: the least of a few rounds,
/// because the server itself writes a record now and then. What the work writes is in every round.
async fn log_bytes(
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

#[tokio::test]
async fn i8_a_duplicate_assigns_no_xid_and_writes_nothing_to_the_log() -> Result<()> {
    let (_db, session) = quiet().await?;
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        for (call, answer) in DUPLICATES {
            let written = log_bytes(&session, async |_| {
                for _ in 0..20 {
                    let said = session
                        .text(&format!(
                            "BEGIN ISOLATION LEVEL {level}; SELECT {call}; SAVEPOINT s; SELECT {call}; RELEASE SAVEPOINT s;
                             SELECT pg_current_xact_id_if_assigned() IS NULL; COMMIT"
                        ))
                        .await?;
                    ensure!(said == format!("{answer}\n{answer}\nt"), "{level}: {call}: {said}");
                }
                Ok(())
            })
            .await?;
            assert_eq!(written, 0, "bytes of log: {level}: {call}");
        }
    }

    // What is measured can be seen: the first claim of an id has a transaction id, and a record or
    // two in the log.
    let claim = async |round: usize| {
        let said = session
            .text(&format!(
                "BEGIN; SELECT idem_try_claim('new {round}', 'orders'); SELECT pg_current_xact_id_if_assigned() IS NULL; COMMIT"
            ))
            .await?;
        ensure!(said == "t\nf", "{said}");
        Ok(())
    };
    let written = log_bytes(&session, claim).await?;
    assert!(written > 100, "a claim has written {written} bytes of log");
    Ok(())
}

#[tokio::test]
async fn i8_a_duplicate_that_had_to_wait_costs_no_xid_either() -> Result<()> {
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
            "BEGIN ISOLATION LEVEL {level}; SELECT 1; SELECT idem_try_claim('waited for {n}', 'orders');
             SELECT pg_current_xact_id_if_assigned() IS NULL; COMMIT"
        );
        let (said, committed) = tokio::join!(session.text(&waits), async {
            db.until_blocked(pid).await?;
            first.run("COMMIT").await
        });
        committed?;
        assert_eq!(said?, "1\nf\nt", "{level}");
    }
    Ok(())
}

#[tokio::test]
async fn i8_a_duplicate_aborts_nothing_and_logs_nothing() -> Result<()> {
    let (db, session) = quiet().await?;
    session.run("SET client_min_messages = debug5").await?;
    // So that everything that is ever loaded once is loaded, and said.
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
        for (call, answer) in DUPLICATES {
            assert_eq!(
                session.text(&format!("SELECT {call}")).await?,
                answer,
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
        "what stood beside the duplicates is there"
    );
    let notices = session.notices();
    ensure!(!notices.is_empty(), "debug messages are heard");
    let loud: Vec<_> = notices
        .iter()
        .filter(|notice| !notice.severity.starts_with("DEBUG"))
        .collect();
    assert!(loud.is_empty(), "{loud:?}");
    assert_eq!(db.cluster().log()?, logged, "the server's log");
    Ok(())
}
