//! Tests of sessions that use the same call at the same time, and of a session that is killed
//! during a call.

use anyhow::{Context, Result, ensure};
use idem_testkit::{Database, until};

use super::{LEVELS, begin, begin_charge, calls, finish};

#[tokio::test]
async fn second_begin_waits_and_returns_unknown() -> Result<()> {
    let db = Database::with_idem("second").await?;
    let (first, second) = (db.connect().await?, db.connect().await?);
    let pid = second.pid().await?;
    for level in LEVELS {
        for (end, expected) in [("COMMIT", "unknown|2"), ("ROLLBACK", "new|1")] {
            let id = format!("{level} {end}");
            first.run(&format!("BEGIN ISOLATION LEVEL {level}")).await?;
            assert_eq!(begin(&first, &id).await?, "new|1");
            // The snapshot of the second session is older than the end of the first transaction.
            second
                .run(&format!("BEGIN ISOLATION LEVEL {level}; SELECT 1"))
                .await?;
            let (state, ended) = tokio::join!(begin(&second, &id), async {
                db.until_blocked(pid).await?;
                first.run(end).await
            });
            ended?;
            assert_eq!(state?, expected, "{id}");
            second.run("COMMIT").await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_concurrent_begins_returns_new() -> Result<()> {
    const CLIENTS: usize = 6;
    const CALLS: usize = 40;
    let db = Database::with_idem("at_once").await?;
    for level in LEVELS {
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            let session = db.connect().await?;
            clients.push(tokio::spawn(async move {
                let mut begun = Vec::new();
                for n in 0..CALLS {
                    let begin = begin_charge(&format!("{level} {n}"));
                    begun.push(
                        session
                            .text(&format!("BEGIN ISOLATION LEVEL {level}; {begin}; COMMIT"))
                            .await?,
                    );
                }
                anyhow::Ok(begun)
            }));
        }
        let mut begun = Vec::new();
        for client in clients {
            begun.push(client.await??);
        }
        for n in 0..CALLS {
            let mut states: Vec<_> = begun.iter().map(|client| client[n].as_str()).collect();
            states.sort_by_key(|state| state.rsplit('|').next().map(str::to_owned));
            let expected: Vec<_> = (1..=CLIENTS)
                .map(|attempt| {
                    if attempt == 1 {
                        "new|1".to_owned()
                    } else {
                        format!("unknown|{attempt}")
                    }
                })
                .collect();
            assert_eq!(states, expected, "{level}: call {n}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn concurrent_finish_with_another_response_fails() -> Result<()> {
    let db = Database::with_idem("finishing").await?;
    let (first, second) = (db.connect().await?, db.connect().await?);
    let pid = second.pid().await?;
    for (n, level) in LEVELS.into_iter().enumerate() {
        for (response, refused) in [("1", false), ("2", true)] {
            let id = format!("{n} {response}");
            begin(&first, &id).await?;
            first.run("BEGIN").await?;
            finish(&first, &id, "1").await?;
            second
                .run(&format!("BEGIN ISOLATION LEVEL {level}; SELECT 1"))
                .await?;
            let (ended_with, ended) = tokio::join!(finish(&second, &id, response), async {
                db.until_blocked(pid).await?;
                first.run("COMMIT").await
            });
            ended?;
            second.run("ROLLBACK").await?;
            assert_eq!(ended_with.is_err(), refused, "{level}: {ended_with:?}");
            assert_eq!(calls(&first, &id).await?, "charge|done|1|1|NULL");
        }
    }
    Ok(())
}

#[tokio::test]
async fn killed_backend_leaves_call_unknown_with_the_same_key() -> Result<()> {
    let db = Database::with_idem("killed").await?;
    let session = db.connect().await?;
    let begin = "SELECT state, idempotency_key FROM idem_begin_call('m', 'orders', 'charge')";
    let mut keys = Vec::new();
    for state in ["new", "unknown", "unknown"] {
        let caller = db.connect().await?;
        let begun = caller.text(begin).await?;
        let (begun_as, key) = begun
            .split_once('|')
            .context("the row does not have two columns")?;
        assert_eq!(begun_as, state);
        keys.push(key.to_owned());
        // The backend is killed while it records the response, so the response is not recorded.
        caller
            .run("BEGIN; SELECT idem_finish_call('m', 'orders', 'charge', '7')")
            .await?;
        let pid = caller.pid().await?;
        session
            .run(&format!("SELECT pg_terminate_backend({pid})"))
            .await?;
        until("the backend has ended", async || {
            let there = session
                .text(&format!(
                    "SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}"
                ))
                .await?;
            Ok(there == "0")
        })
        .await?;
    }
    ensure!(keys.windows(2).all(|pair| pair[0] == pair[1]), "{keys:?}");
    assert_eq!(calls(&session, "m").await?, "charge|unknown|3|NULL|NULL");
    Ok(())
}

#[tokio::test]
async fn rolled_back_savepoint_removes_its_calls() -> Result<()> {
    let db = Database::with_idem("savepoints").await?;
    let session = db.connect().await?;
    session.run("BEGIN; SAVEPOINT s").await?;
    assert_eq!(begin(&session, "m").await?, "new|1");
    assert_eq!(
        begin(&session, "m").await?,
        "unknown|2",
        "the transaction sees its own call"
    );
    finish(&session, "m", "1").await?;
    session.run("ROLLBACK TO SAVEPOINT s").await?;
    assert_eq!(begin(&session, "m").await?, "new|1");
    session.run("COMMIT").await?;
    assert_eq!(calls(&session, "m").await?, "charge|unknown|1|NULL|NULL");
    Ok(())
}

/// A process that has lost its lease cannot begin a call. `idem_begin_call` therefore returns `new`
/// to the next holder of the lease.
#[tokio::test]
async fn call_under_a_lost_lease_is_not_begun() -> Result<()> {
    let db = Database::with_idem("fenced").await?;
    let session = db.connect().await?;
    let token = |lease: &str| format!("SELECT token FROM idem_acquire('m', 'orders', '{lease}')");
    let begin = |token: &str| {
        format!(
            "SELECT state, attempt FROM idem_begin_call('m', 'orders', 'charge', token => {token})"
        )
    };
    let lost = session.text(&token("1 millisecond")).await?;
    until("the lease has ended", async || {
        Ok(session
            .text("SELECT due_at < clock_timestamp() FROM idem.pending_0")
            .await?
            == "t")
    })
    .await?;
    assert_eq!(
        session.refused(&begin(&lost)).await?.sqlstate,
        "55000",
        "the lease has ended"
    );
    let held = session.text(&token("1 hour")).await?;
    assert_eq!(
        session.refused(&begin(&lost)).await?.sqlstate,
        "55000",
        "another holder has the lease"
    );
    assert_eq!(session.text(&begin(&held)).await?, "new|1");
    assert_eq!(session.text(&begin(&held)).await?, "unknown|2");
    Ok(())
}
