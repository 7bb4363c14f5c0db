//! Tests of the resources that a function uses: memory after errors, the time until a cancel ends a
//! statement with a long list, and pinned pages during a wait.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use idem_testkit::presence::until_none;
use idem_testkit::{Database, Session, until};

/// Returns the resident memory of a backend, in kilobytes.
fn resident_kb(pid: i32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .context("VmRSS")?;
    Ok(line
        .split_whitespace()
        .nth(1)
        .context("a number")?
        .parse()?)
}

/// Returns a session in a SERIALIZABLE transaction in which every insert fails with 40001. The
/// transaction has read a row that a second transaction updated, and has updated a row that the
/// second transaction read. The second transaction has committed.
async fn doomed(db: &Database) -> Result<Session> {
    let (first, second) = (db.connect().await?, db.connect().await?);
    first
        .run("CREATE TABLE pair (n int PRIMARY KEY, v int); INSERT INTO pair VALUES (1, 0), (2, 0)")
        .await?;
    first
        .run("BEGIN; SELECT idem_try_claim('first', 'orders'); COMMIT")
        .await?;
    for (session, n) in [(&first, 1), (&second, 2)] {
        session
            .run(&format!(
                "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT v FROM pair WHERE n = {n}"
            ))
            .await?;
    }
    first.run("UPDATE pair SET v = 1 WHERE n = 2").await?;
    second
        .run("UPDATE pair SET v = 1 WHERE n = 1; COMMIT")
        .await?;
    Ok(first)
}

/// 10,000 errors in the middle of a batch leak no memory in the backend.
#[tokio::test]
async fn errors_inside_a_batch_leak_no_memory() -> Result<()> {
    const MAY_GROW_KB: u64 = 8 * 1024;
    let db = Database::with_idem("leak").await?;
    // The claims of the batch are then inserted together, so the errors end subtransactions too.
    until_none(&db.connect().await?).await?;
    let session = doomed(&db).await?;
    let pid = session.pid().await?;
    let fail = |times: usize| {
        format!(
            "DO $$
             DECLARE ids text[] := ARRAY(SELECT 'id-' || n FROM generate_series(1, 500) n);
                     failed int := 0;
             BEGIN
                 FOR n IN 1 .. {times} LOOP
                     BEGIN
                         PERFORM idem_try_claim_batch(ids, 'orders');
                     EXCEPTION WHEN serialization_failure THEN failed := failed + 1;
                     END;
                 END LOOP;
                 ASSERT failed = {times}, failed;
             END $$"
        )
    };
    session.run(&fail(500)).await?;
    let before = resident_kb(pid)?;
    session.run(&fail(10_000)).await?;
    let grown = resident_kb(pid)?.saturating_sub(before);
    ensure!(grown < MAY_GROW_KB, "the backend has grown by {grown} kB");
    Ok(())
}

/// Stores lists of the largest allowed length in a table, so that a cancel interrupts the function
/// and not the expression that builds its arguments.
async fn long_lists(session: &Session) -> Result<()> {
    session
        .run(
            r#"CREATE TABLE long (ids text[], effects jsonb);
               INSERT INTO long VALUES (
                   ARRAY(SELECT 'id-' || n FROM generate_series(1, 100000) n),
                   (SELECT jsonb_agg(jsonb_build_object('topic', 't', 'key', n, 'payload',
                       repeat('x', 500)))
                      FROM (SELECT n::text FROM generate_series(1, 10000) n) k))"#,
        )
        .await
}

/// Executes a statement completely, and then again with a statement timeout of a tenth of its
/// duration. Asserts that the second execution ends soon after the timeout, with 57014.
async fn assert_ends_when_cancelled(session: &Session, before: &str, call: &str) -> Result<()> {
    let timed = async |timeout: Duration| {
        session.run("BEGIN").await?;
        session.run(before).await?;
        session
            .run(&format!(
                "SET LOCAL statement_timeout = {}",
                timeout.as_millis()
            ))
            .await?;
        let started = Instant::now();
        let ended = session.simple_query(call).await;
        let took = started.elapsed();
        session.run("ROLLBACK").await?;
        let code = ended
            .err()
            .map(|error| error.code().map_or("", |code| code.code()).to_owned());
        anyhow::Ok((took, code))
    };
    timed(Duration::from_secs(60)).await?;
    let (full, failed) = timed(Duration::from_secs(60)).await?;
    ensure!(failed.is_none(), "{call}: {failed:?}");
    let (cancelled, code) = timed(full / 10).await?;
    assert_eq!(code.as_deref(), Some("57014"), "{call}");
    // On a busy machine the signal itself can be late, so the limit is longer than the timeout.
    ensure!(
        cancelled < full / 10 + Duration::from_millis(100).max(full / 2),
        "{call}: takes {full:?} and was cancelled after {:?}, but ended after {cancelled:?}",
        full / 10
    );
    Ok(())
}

/// A statement with a long list ends soon after a cancel.
#[tokio::test]
async fn statements_with_long_lists_can_be_cancelled() -> Result<()> {
    let db = Database::with_idem("cancelled").await?;
    let session = db.connect().await?;
    long_lists(&session).await?;
    session
        .run(
            "SELECT idem.intern_destination('orders');
             CREATE TABLE lease AS SELECT token FROM idem_acquire('l', 'orders', '1 day')",
        )
        .await?;
    for (before, call) in [
        (
            "",
            "SELECT cardinality(idem_try_claim_batch(ids, 'orders')) FROM long",
        ),
        (
            "SELECT idem_try_claim('m', 'orders')",
            "SELECT cardinality(idem_record_effects('m', 'orders', effects)) FROM long",
        ),
        (
            "",
            "SELECT idem_try_record('m', 'orders', effects) FROM long",
        ),
        (
            "",
            "SELECT cardinality(idem_complete('l', 'orders', token, effects)) FROM long, lease",
        ),
        (
            "SELECT idem_try_record('m', 'orders', effects) FROM long",
            "SELECT idem_replay_effects('m', 'orders')",
        ),
    ] {
        assert_ends_when_cancelled(&session, before, call).await?;
    }
    Ok(())
}

/// I11: a function that waits for a row lock has no index page pinned, so VACUUM does not wait for
/// it.
#[tokio::test]
async fn i11_vacuum_does_not_wait_for_a_waiting_function() -> Result<()> {
    let db = Database::with_idem("pinned").await?;
    let (holder, waiter, vacuum) = (
        db.connect().await?,
        db.connect().await?,
        db.connect().await?,
    );
    // Create more rows than fit on one page, and dead rows, so that VACUUM reads every page of the
    // index.
    holder
        .run(
            "ALTER TABLE idem.pending_0 SET (autovacuum_enabled = false);
             CREATE TABLE lease AS
                 SELECT n, a.token FROM generate_series(1, 1000) n,
                        idem_acquire('m-' || n, 'orders', '1 day') a;
             SELECT idem_complete('m-' || n, 'orders', token) FROM lease WHERE n <= 900",
        )
        .await?;
    holder
        .run("BEGIN; SELECT FROM idem.pending_0 WHERE id = 'm-1000' FOR UPDATE")
        .await?;
    let pid = waiter.pid().await?;
    let complete = tokio::spawn(async move {
        waiter
            .text(
                "SELECT cardinality(idem_complete('m-1000', 'orders', token)) FROM lease
                  WHERE n = 1000",
            )
            .await
    });
    db.until_blocked(pid).await?;

    vacuum.run("SET statement_timeout = '10s'").await?;
    vacuum
        .run("VACUUM (INDEX_CLEANUP ON) idem.pending_0")
        .await?;
    let left = "SELECT reltuples::int FROM pg_class WHERE oid = 'idem.pending_0_pkey'::regclass";
    until("VACUUM has read the index", async || {
        Ok(vacuum.text(left).await?.parse::<i32>()? < 500)
    })
    .await?;
    holder.run("COMMIT").await?;
    assert_eq!(complete.await??, "0");
    Ok(())
}
