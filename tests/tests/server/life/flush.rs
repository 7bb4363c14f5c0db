//! Claims with synchronous_commit = off, and a crash.

use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{cluster, connect, with_idem};

/// A claim is committed and not on disk, a duplicate is acknowledged, and the server crashes. With idem.wait_for_flush the
/// claim is found afterwards; without it the claim is lost, and its message with it.
#[tokio::test]
async fn i4_acknowledged_duplicate_outlives_a_crash() -> Result<()> {
    let server = cluster("flush")?
        .preload(false)
        .setting("autovacuum", "off")
        .setting("wal_writer_delay", "10s")
        .start()?;
    with_idem(&server, "app")
        .await?
        .run("BEGIN; SELECT idem_try_claim('first', 'orders'); COMMIT")
        .await?;
    for (wait_for_flush, found) in [("off", "f"), ("on", "t")] {
        let (claimer, duplicate) = (connect(&server, "app").await?, connect(&server, "app").await?);
        // Nothing else writes the claim to disk: the WAL writer stands still until it is killed.
        let walwriter = claimer
            .text("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
            .await?
            .parse()
            .context("the WAL writer")?;
        kill(Pid::from_raw(walwriter), Signal::SIGSTOP)?;
        let claim = format!("BEGIN; SELECT idem_try_claim('m-{wait_for_flush}', 'orders'); COMMIT");
        claimer.run("SET synchronous_commit = off").await?;
        assert_eq!(claimer.text(&claim).await?, "t");
        duplicate.run(&format!("SET idem.wait_for_flush = {wait_for_flush}")).await?;
        assert_eq!(duplicate.text(&claim).await?, "f");

        server.crash_backend(walwriter)?;
        server.wait_until_ready(Duration::from_secs(30))?;
        let after = connect(&server, "app").await?;
        assert_eq!(
            after
                .text(&format!("SELECT idem_is_claimed('m-{wait_for_flush}', 'orders')"))
                .await?,
            found,
            "idem.wait_for_flush = {wait_for_flush}"
        );
    }
    Ok(())
}
