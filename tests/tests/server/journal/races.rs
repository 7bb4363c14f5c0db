//! Two at the same call, and one that dies at it.

use anyhow::{Context, Result, ensure};
use idem_tests::harness::{Database, until};

use super::{LEVELS, begin, begin_charge, calls, finish};

#[tokio::test]
async fn whoever_begins_second_waits_and_is_told_unknown() -> Result<()> {
    let db = Database::with_idem("second").await?;
    let (first, second) = (db.connect().await?, db.connect().await?);
    let pid = second.pid().await?;
    for level in LEVELS {
        for (end, told) in [("COMMIT", "unknown|2"), ("ROLLBACK", "new|1")] {
            let id = format!("{level} {end}");
            first.run(&format!("BEGIN ISOLATION LEVEL {level}")).await?;
            assert_eq!(begin(&first, &id).await?, "new|1");
            // Its snapshot is older than the end of the first.
            second
                .run(&format!("BEGIN ISOLATION LEVEL {level}; SELECT 1"))
                .await?;
            let (answer, ended) = tokio::join!(begin(&second, &id), async {
                db.until_blocked(pid).await?;
                first.run(end).await
            });
            ended?;
            assert_eq!(answer?, told, "{id}");
            second.run("COMMIT").await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_that_begin_at_once_exactly_one_is_told_new() -> Result<()> {
    const CLIENTS: usize = 6;
    const CALLS: usize = 40;
    let db = Database::with_idem("at_once").await?;
    for level in LEVELS {
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            let session = db.connect().await?;
            clients.push(tokio::spawn(async move {
                let mut told = Vec::new();
                for n in 0..CALLS {
                    let begin = begin_charge(&format!("{level} {n}"));
                    told.push(
                        session
                            .text(&format!("BEGIN ISOLATION LEVEL {level}; {begin}; COMMIT"))
                            .await?,
                    );
                }
                anyhow::Ok(told)
            }));
        }
        let mut told = Vec::new();
        for client in clients {
            told.push(client.await??);
        }
        for n in 0..CALLS {
            let mut answers: Vec<_> = told.iter().map(|client| client[n].as_str()).collect();
            answers.sort_by_key(|answer| answer.rsplit('|').next().map(str::to_owned));
            let expected: Vec<_> = (1..=CLIENTS)
                .map(|attempt| {
                    if attempt == 1 {
                        "new|1".to_owned()
                    } else {
                        format!("unknown|{attempt}")
                    }
                })
                .collect();
            assert_eq!(answers, expected, "{level}: call {n}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn whoever_finishes_while_another_does_says_the_same_or_is_refused() -> Result<()> {
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
            let (said, ended) = tokio::join!(finish(&second, &id, response), async {
                db.until_blocked(pid).await?;
                first.run("COMMIT").await
            });
            ended?;
            second.run("ROLLBACK").await?;
            assert_eq!(said.is_err(), refused, "{level}: {said:?}");
            assert_eq!(calls(&first, &id).await?, "charge|done|1|1|NULL");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_backend_that_is_killed_after_it_asked_leaves_the_call_unknown_with_the_same_key()
-> Result<()> {
    let db = Database::with_idem("killed").await?;
    let session = db.connect().await?;
    let begin = "SELECT state, idempotency_key FROM idem_begin_call('m', 'orders', 'charge')";
    let mut keys = Vec::new();
    for state in ["new", "unknown", "unknown"] {
        let caller = db.connect().await?;
        let told = caller.text(begin).await?;
        let (said, key) = told.split_once('|').context("two columns")?;
        assert_eq!(said, state);
        keys.push(key.to_owned());
        // Killed while it records the answer: that is not recorded.
        caller
            .run("BEGIN; SELECT idem_finish_call('m', 'orders', 'charge', '7')")
            .await?;
        let pid = caller.pid().await?;
        session
            .run(&format!("SELECT pg_terminate_backend({pid})"))
            .await?;
        until("the backend is gone", async || {
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
async fn a_savepoint_takes_its_calls_back() -> Result<()> {
    let db = Database::with_idem("savepoints").await?;
    let session = db.connect().await?;
    session.run("BEGIN; SAVEPOINT s").await?;
    assert_eq!(begin(&session, "m").await?, "new|1");
    assert_eq!(begin(&session, "m").await?, "unknown|2", "its own");
    finish(&session, "m", "1").await?;
    session.run("ROLLBACK TO SAVEPOINT s").await?;
    assert_eq!(begin(&session, "m").await?, "new|1");
    session.run("COMMIT").await?;
    assert_eq!(calls(&session, "m").await?, "charge|unknown|1|NULL|NULL");
    Ok(())
}

/// A process that lost its lease begins no call, so the holder of the lease is told `new`.
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
        "another has the lease"
    );
    assert_eq!(session.text(&begin(&held)).await?, "new|1");
    assert_eq!(session.text(&begin(&held)).await?, "unknown|2");
    Ok(())
}
