//! Tests of large arguments in a backend with limited memory: each statement succeeds or fails with
//! an error, and the server continues to run.

use anyhow::{Context, Result, bail, ensure};
use idem_cluster::{Cluster, Install};
use idem_testkit::{Database, Session};
use std::sync::Arc;

/// The SQLSTATEs with which a statement may fail.
const CLEAN: [&str; 3] = ["53200", "54000", "22023"];
const MB: u64 = 1 << 20;

/// Creates large values of every kind, uncompressed and stored out of line.
const LARGE: &str = r#"
    CREATE TABLE large (
        ids text[], uuids uuid[], json jsonb, bytes bytea, object jsonb, line text, id text,
        many jsonb, one jsonb, base64 jsonb, escaped jsonb);
    ALTER TABLE large ALTER ids SET STORAGE EXTERNAL, ALTER uuids SET STORAGE EXTERNAL,
        ALTER json SET STORAGE EXTERNAL, ALTER bytes SET STORAGE EXTERNAL,
        ALTER object SET STORAGE EXTERNAL, ALTER line SET STORAGE EXTERNAL,
        ALTER id SET STORAGE EXTERNAL, ALTER many SET STORAGE EXTERNAL,
        ALTER one SET STORAGE EXTERNAL,
        ALTER base64 SET STORAGE EXTERNAL, ALTER escaped SET STORAGE EXTERNAL;
    INSERT INTO large SELECT
        ARRAY(SELECT repeat('x', 800) || n FROM generate_series(1, 10000) n),
        ARRAY(SELECT gen_random_uuid() FROM generate_series(1, 20000)),
        to_jsonb(repeat('x', 16000000)), convert_to(repeat('x', 16000000), 'UTF8'),
        jsonb_build_object('h', repeat('x', 16000000), repeat('"', 4000000), 1, 'traceparent',
                           '00-a'),
        repeat('x', 16000000), repeat('x', 16000000),
        (SELECT jsonb_agg(n) FROM generate_series(1, 2000000) n),
        jsonb_build_object('topic', 't', 'payload', repeat('x', 16000000)),
        jsonb_build_object('topic', 't', 'payload_base64', repeat('AAAA', 4000000)),
        jsonb_build_array(jsonb_build_object(repeat('"', 8000000), 1),
                          jsonb_build_object('topic', repeat('"', 8000000)),
                          jsonb_build_object('topic', 't', 'payload_base64', repeat('"', 4000000)));
    SELECT idem_try_record('kept', 'orders', one) FROM large;
    SELECT idem_begin_call('kept', 'orders', 'ask');
    CREATE TABLE lease AS SELECT token FROM idem_acquire('leased', 'orders', '1 day');"#;

/// The statements under test. Each statement runs in a transaction that is rolled back.
const STATEMENTS: &[&str] = &[
    "SELECT cardinality(idem_try_claim_batch(ids, 'orders')) FROM large",
    "SELECT cardinality(idem_try_claim_uuid_batch(uuids, 'orders')) FROM large",
    "SELECT idem_try_claim(id, 'orders') FROM large",
    "SELECT idem_try_claim('m', id) FROM large",
    "SELECT idem_claim('m', 'orders', fingerprint => bytes) FROM large",
    "SELECT idem_try_record('m', 'orders', many) FROM large",
    "SELECT idem_try_record('m', 'orders', one) FROM large",
    "SELECT idem_try_record('m', 'orders', base64) FROM large",
    "SELECT idem_try_record('m', 'orders', escaped) FROM large",
    "SELECT idem_try_record('m', 'orders', escaped -> 1) FROM large",
    "SELECT idem_try_record('m', 'orders', escaped -> 2) FROM large",
    "SELECT idem_complete('leased', 'orders', token, one) FROM large, lease",
    "SELECT idem_send('t', json) FROM large",
    "SELECT idem_send_bytes('t', bytes) FROM large",
    "SELECT idem_send('t', '1'::jsonb, headers => object) FROM large",
    "SELECT idem_receive('m', 'orders', json) FROM large",
    "SELECT idem_receive_bytes('m', 'orders', bytes) FROM large",
    "SELECT idem_receive('m', 'orders', '1'::jsonb, headers => object) FROM large",
    "SELECT idem_begin_call('m', 'orders', 'ask', json) FROM large",
    "SELECT idem_finish_call('kept', 'orders', 'ask', json::json) FROM large",
    "SELECT idem_fail_call('kept', 'orders', 'ask', line) FROM large",
    "SELECT count(*) FROM idem_effects('kept', 'orders')",
    "SELECT idem_replay_effects('kept', 'orders')",
];

/// Returns the address space, in bytes, that a backend uses.
fn used(pid: i32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find(|line| line.starts_with("VmSize:"))
        .context("VmSize")?;
    Ok(1024
        * line
            .split_whitespace()
            .nth(1)
            .context("a number")?
            .parse::<u64>()?)
}

/// Limits the address space of a backend to `bytes`. Only the user that runs the server may limit
/// its processes, so the server executes `prlimit` (from util-linux).
async fn limit(observer: &Session, pid: i32, bytes: u64) -> Result<()> {
    observer
        .run(&format!(
            "COPY (SELECT) TO PROGRAM 'cat > /dev/null; prlimit --pid {pid} --as={bytes}:'"
        ))
        .await
}

/// Executes a statement and returns whether it succeeded. Fails when the backend ended or when the
/// SQLSTATE is not in [`CLEAN`].
async fn survives(session: &Session, statement: &str) -> Result<bool> {
    session.run("BEGIN").await?;
    let ended = session.simple_query(statement).await;
    let succeeded = match ended {
        Ok(_) => true,
        Err(error) => match error.as_db_error() {
            Some(refusal) if CLEAN.contains(&refusal.code().code()) => false,
            Some(refusal) => bail!(
                "{statement}: {} {}",
                refusal.code().code(),
                refusal.message()
            ),
            None => bail!("{statement}: the backend has ended: {error}"),
        },
    };
    session.run("ROLLBACK").await?;
    Ok(succeeded)
}

/// A statement that runs out of memory fails with an error; the backend and the server continue to
/// run.
#[tokio::test]
async fn out_of_memory_is_an_error_and_the_server_continues() -> Result<()> {
    let cluster = Cluster::builder(&Install::from_env()?)
        .name("memory")
        .setting("idem.databases", "none");
    let cluster = Arc::new(tokio::task::spawn_blocking(move || cluster.start()).await??);
    let db = Database::with_idem_in(Arc::clone(&cluster), "memory").await?;
    let observer = db.connect().await?;
    observer.run(LARGE).await?;
    let started = observer.text("SELECT pg_postmaster_start_time()").await?;

    for statement in STATEMENTS {
        let session = db.connect().await?;
        let pid = session.pid().await?;
        // Execute the statement once without a limit, so that the memory that the backend keeps is
        // allocated before the measurement.
        survives(&session, statement).await?;
        let used = used(pid)?;
        let mut failed = 0;
        for headroom in (0..160).step_by(17) {
            limit(&observer, pid, used + (4 + headroom) * MB).await?;
            let survived = survives(&session, statement).await;
            if survived.is_err() {
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            }
            failed += usize::from(!survived.with_context(|| cluster.log().unwrap_or_default())?);
        }
        println!("{statement}: {failed} of 10 failed");
    }
    assert_eq!(
        observer.text("SELECT pg_postmaster_start_time()").await?,
        started
    );
    ensure!(
        !cluster.log()?.contains("terminated by signal"),
        "{}",
        cluster.log()?
    );
    Ok(())
}
