//! No plan of a function is compiled: with PostgreSQL's defaults compilation costs a thousand times
//! what the statement does.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use idem_tests::harness::{Database, Session};

use super::run;

/// Every plan of every nested statement, as notices of this session.
const EXPLAIN_ALL: &str =
    "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on;
                           SET auto_explain.log_analyze = on; SET client_min_messages = log";

/// How often a call is timed.
const CALLS: usize = 9;
/// Compilation costs several hundred times as much; a busy machine costs less than this.
const FACTOR: u32 = 20;

/// The plans that were executed since the last look; those that were compiled.
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

#[tokio::test]
async fn no_plan_is_compiled_with_default_settings() -> Result<()> {
    let db = Database::with_idem("compiled").await?;
    let session = db.connect().await?;
    assert_eq!(
        session.text("SHOW jit").await?,
        "on",
        "PostgreSQL's default since 12"
    );
    assert_eq!(
        session.text("SELECT pg_jit_available()").await?,
        "t",
        "the copy of PostgreSQL has no llvmjit"
    );
    session.run(EXPLAIN_ALL).await?;
    session
        .run("SET jit_above_cost = 0; SELECT count(*) FROM generate_series(1, 9) n; RESET jit_above_cost")
        .await?;
    let (_, compiled) = plans(&session);
    assert_eq!(compiled.len(), 1, "this test sees what is compiled");

    run(&session).await?;
    let (seen, compiled) = plans(&session);
    ensure!(seen > 300, "only {seen} plans were seen");
    assert!(
        compiled.is_empty(),
        "{} of {seen} plans were compiled:\n{}",
        compiled.len(),
        compiled.join("\n")
    );
    Ok(())
}

/// The cost of a disabled path is above every limit of compilation, so both settings stand
/// together.
#[tokio::test]
async fn function_that_disables_paths_disables_compilation() -> Result<()> {
    let db = Database::with_idem("disables").await?;
    let without =
        "SELECT f.oid::regprocedure FROM pg_proc f JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = f.oid
                     JOIN pg_extension x ON x.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass AND x.extname = 'idem'
                    WHERE f.proconfig::text LIKE '%enable\\_%=off%' AND NOT 'jit=off' = ANY (f.proconfig) ORDER BY 1";
    assert_eq!(db.connect().await?.text(without).await?, "");
    Ok(())
}

/// The calls of a relay take as long with compilation allowed as without: each in a new session,
/// where plans are made.
#[tokio::test]
async fn relay_costs_the_same_with_and_without_jit() -> Result<()> {
    let db = Database::with_idem("jit_time").await?;
    let mut medians = Vec::new();
    for jit in ["off", "on"] {
        let mut times = Vec::new();
        for _ in 0..CALLS {
            let session = db.connect().await?;
            session
                .run(&format!(
                    "SET jit = {jit}; SELECT idem_send('mail', '1'::jsonb) FROM generate_series(1, 20)"
                ))
                .await?;
            times.push(relay_round(&session).await?);
        }
        times.sort();
        medians.push(times[CALLS / 2]);
    }
    assert!(
        medians[1] < medians[0] * FACTOR,
        "without and with: {medians:?}"
    );
    Ok(())
}

/// Lease, park, acknowledge, hand over.
async fn relay_round(session: &Session) -> Result<Duration> {
    let started = Instant::now();
    session
        .run("CREATE TEMP TABLE batch AS SELECT token, message_id FROM idem_relay_next('default', 0, 10)")
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
