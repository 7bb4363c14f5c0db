//! Tests of I9: errors show clients nothing of the build.

use anyhow::Result;
use idem_cluster::{Cluster, Install};
use idem_testkit::Session;

/// I9: with RUST_BACKTRACE in the environment of the server no error has a backtrace: errors of
/// idem, errors of PostgreSQL inside idem, and both inside a subtransaction or a function.
#[tokio::test]
async fn i9_errors_contain_no_backtrace() -> Result<()> {
    let cluster = Cluster::builder(&Install::from_env()?)
        .name("backtraces")
        .setting("shared_buffers", "32MB")
        .env("RUST_BACKTRACE", "full")
        .env("RUST_LIB_BACKTRACE", "full")
        .start()?;
    let session = Session::in_database_with_idem(&cluster, "app").await?;
    let holder = Session::superuser(&cluster, "app").await?;
    holder
        .run("BEGIN; SELECT idem_try_claim('held', 'orders')")
        .await?;
    session
        .run(
            "SET lock_timeout = '10ms'; SET max_stack_depth = '100kB';
             CREATE FUNCTION wraps() RETURNS void LANGUAGE plpgsql AS $$
             BEGIN PERFORM idem_try_claim('', 'orders'); END $$;",
        )
        .await?;
    for statement in [
        "SELECT idem_try_claim('', 'orders')",
        "SELECT idem_try_claim(NULL, 'orders')",
        "SELECT wraps()",
        "SELECT idem_try_claim('held', 'orders')",
        "SELECT idem_try_claim_batch('{held}', 'orders')",
        "SELECT idem_record_effects('m', 'orders', '[]')",
        "SELECT idem_complete('m', 'orders', 7)",
        "SELECT idem_send('t', 'no json')",
        "SELECT idem_try_record('m', 'orders', '{\"topic\": 7}')",
        "SET idem.traceparent = 'x'; SELECT idem.key_of(NULL)",
        "BEGIN READ ONLY; SELECT idem_try_claim('m', 'orders')",
    ] {
        let refusal = session.refused(statement).await?;
        assert!(
            !is_backtrace(&refusal.detail) && !is_backtrace(&refusal.message),
            "{statement}: {refusal:?}"
        );
        session.run("ROLLBACK").await?;
    }
    let log = cluster.log()?;
    assert!(!is_backtrace(&log), "{log}");
    Ok(())
}

/// Returns whether the text names functions or files of Rust, as each frame of a backtrace does.
fn is_backtrace(text: &str) -> bool {
    text.contains("std::") || text.contains(".rs:")
}
