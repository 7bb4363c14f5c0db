//! Tests that no plan of a function is compiled (JIT). With the default settings of PostgreSQL, a
//! compilation would take a thousand times as long as the statement.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use idem_testkit::{Database, Session};

use super::run;

/// Reports every plan of every nested statement as a notice of the session.
const EXPLAIN_ALL: &str = "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0;
                           SET auto_explain.log_nested_statements = on;
                           SET auto_explain.log_analyze = on; SET client_min_messages = log";

/// The number of rounds that are timed with each setting.
const ROUNDS: usize = 9;
/// The largest allowed ratio of the median times with and without JIT. With compilation the ratio
/// is several hundred. A busy machine changes the ratio by less than this limit.
const FACTOR: u32 = 20;

/// Takes the notices of the session and returns the number of executed plans, and the compiled
/// plans.
fn plans(session: &Session) -> (usize, Vec<String>) {
    let plans: Vec<_> = session
        .notices()
        .into_iter()
        .filter(|n| n.message.contains("plan:"))
        .collect();
    let compiled = plans
        .iter()
        .filter(|n| n.message.contains("JIT:"))
        .map(|n| n.message.clone());
    (plans.len(), compiled.collect())
}

/// With the default settings no plan of a function is compiled.
#[tokio::test]
async fn no_plan_is_compiled_with_default_settings() -> Result<()> {
    let db = Database::with_idem("compiled").await?;
    let session = db.connect().await?;
    assert_eq!(
        session.text("SHOW jit").await?,
        "on",
        "jit is on by default since PostgreSQL 12"
    );
    assert_eq!(
        session.text("SELECT pg_jit_available()").await?,
        "t",
        "this installation of PostgreSQL has no llvmjit"
    );
    session.run(EXPLAIN_ALL).await?;
    session
        .run(
            "SET jit_above_cost = 0; SELECT count(*) FROM generate_series(1, 9) n;
             RESET jit_above_cost",
        )
        .await?;
    let (_, compiled) = plans(&session);
    assert_eq!(compiled.len(), 1, "the notices include a compiled plan");

    run(&session).await?;
    let (seen, compiled) = plans(&session);
    ensure!(seen > 300, "there are only {seen} plans");
    assert!(
        compiled.is_empty(),
        "{} of {seen} plans were compiled:\n{}",
        compiled.len(),
        compiled.join("\n")
    );
    Ok(())
}

/// A function that disables paths also disables JIT, because the cost of a disabled path is above
/// every threshold of compilation.
#[tokio::test]
async fn function_that_disables_paths_disables_compilation() -> Result<()> {
    let db = Database::with_idem("disables").await?;
    let without = "SELECT f.oid::regprocedure FROM pg_proc f
                     JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = f.oid
                     JOIN pg_extension x ON x.oid = d.refobjid
                      AND d.refclassid = 'pg_extension'::regclass AND x.extname = 'idem'
                    WHERE f.proconfig::text LIKE '%enable\\_%=off%'
                      AND NOT 'jit=off' = ANY (f.proconfig) ORDER BY 1";
    assert_eq!(db.connect().await?.text(without).await?, "");
    Ok(())
}

/// A round of a relay takes about as long with JIT as without. Each round has a new session, so the
/// statements are planned in each round.
#[tokio::test]
async fn relay_costs_the_same_with_and_without_jit() -> Result<()> {
    let db = Database::with_idem("jit_time").await?;
    let mut medians = Vec::new();
    for jit in ["off", "on"] {
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let session = db.connect().await?;
            session
                .run(&format!(
                    "SET jit = {jit}; SELECT idem_send('mail', '1'::jsonb)
                       FROM generate_series(1, 20)"
                ))
                .await?;
            times.push(relay_round(&session).await?);
        }
        times.sort();
        medians.push(times[ROUNDS / 2]);
    }
    assert!(
        medians[1] < medians[0] * FACTOR,
        "medians without and with JIT: {medians:?}"
    );
    Ok(())
}

/// Leases a batch, parks an effect, acknowledges and hands over. Returns the time that this takes.
async fn relay_round(session: &Session) -> Result<Duration> {
    let started = Instant::now();
    session
        .run(
            "CREATE TEMP TABLE batch AS SELECT token, message_id
               FROM idem_relay_next('default', 0, 10)",
        )
        .await?;
    session
        .run(
            "SELECT idem_relay_park('default', 0, token, message_id, 'refused') FROM batch LIMIT 1",
        )
        .await?;
    session
        .run("SELECT idem_relay_ack('default', 0, max(token)) FROM batch")
        .await?;
    assert_eq!(
        session
            .text("SELECT idem_hand_over('default', '{mail}')")
            .await?,
        "10"
    );
    Ok(started.elapsed())
}
