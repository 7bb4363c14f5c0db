//! Commits with synchronous_commit = off, and a crash.

use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{cluster, connect, with_idem};

/// What a consumer writes, and what its duplicate finds.
struct Case {
    /// Committed before, and on disk.
    prelude: Option<&'static str>,
    /// Committed with synchronous_commit = off.
    first: &'static str,
    /// Between the two.
    meanwhile: Option<&'static str>,
    duplicate: &'static str,
    /// The duplicate's result for which a consumer acknowledges the message.
    acknowledged: &'static str,
    /// The duplicate's result when the first commit is lost.
    lost: &'static str,
}

/// The first claim of a destination creates it.
const CREATE_DESTINATIONS: &str = "BEGIN;
    SELECT idem_try_claim('first', name) FROM unnest('{orders,inbox,work}'::text[]) name;
    COMMIT";
const CLAIM: &str = "BEGIN; SELECT idem_try_claim('m', 'orders'); COMMIT";
const RECEIVE: &str = "SELECT idem_receive('m', 'inbox', '{}')";
const ACQUIRE: &str = "SELECT outcome FROM idem_acquire('m', 'work', '1 hour')";

const CASES: [Case; 4] = [
    Case {
        prelude: None,
        first: CLAIM,
        meanwhile: None,
        duplicate: CLAIM,
        acknowledged: "f",
        lost: "t",
    },
    Case {
        prelude: None,
        first: CLAIM,
        meanwhile: Some("VACUUM (FREEZE, TRUNCATE false) idem.inbox_standard_0"),
        duplicate: CLAIM,
        acknowledged: "f",
        lost: "t",
    },
    Case {
        prelude: Some(ACQUIRE),
        first: "SELECT idem_bury('m', 'work', token, '{}', 'broken') FROM idem.leases",
        meanwhile: None,
        duplicate: ACQUIRE,
        acknowledged: "dead",
        lost: "in_progress",
    },
    Case {
        prelude: None,
        first: RECEIVE,
        meanwhile: None,
        duplicate: RECEIVE,
        acknowledged: "f",
        lost: "t",
    },
];

/// A commit is visible and not on disk, a duplicate is acknowledged, and the server crashes. With
/// idem.wait_for_flush the commit is there afterwards; without it commit and message are lost.
#[tokio::test]
async fn i4_acknowledged_duplicate_outlives_a_crash() -> Result<()> {
    let server = cluster("flush")?
        .preload(false)
        .setting("autovacuum", "off")
        .setting("wal_writer_delay", "10s")
        .start()?;
    with_idem(&server, "app").await?;
    for case in &CASES {
        for (wait_for_flush, after) in [("off", case.lost), ("on", case.acknowledged)] {
            let (writer, duplicate) = (connect(&server, "app").await?, connect(&server, "app").await?);
            writer.run("DROP EXTENSION idem CASCADE; CREATE EXTENSION idem").await?;
            writer.run(CREATE_DESTINATIONS).await?;
            if let Some(prelude) = case.prelude {
                writer.run(prelude).await?;
            }
            // Nothing else writes the commit to disk: the WAL writer stands still until it is killed.
            let walwriter = writer
                .text("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
                .await?
                .parse()
                .context("the WAL writer")?;
            kill(Pid::from_raw(walwriter), Signal::SIGSTOP)?;
            writer.run("SET synchronous_commit = off").await?;
            writer.run(case.first).await?;
            if let Some(meanwhile) = case.meanwhile {
                writer.run(meanwhile).await?;
            }
            duplicate.run(&format!("SET idem.wait_for_flush = {wait_for_flush}")).await?;
            // The duplicate's own commit must not flush the WAL.
            duplicate.run("SET synchronous_commit = off").await?;
            assert_eq!(duplicate.text(case.duplicate).await?, case.acknowledged, "{}", case.duplicate);

            server.crash_backend(walwriter)?;
            server.wait_until_ready(Duration::from_secs(30))?;
            let reader = connect(&server, "app").await?;
            assert_eq!(
                reader.text(case.duplicate).await?,
                after,
                "{}, idem.wait_for_flush = {wait_for_flush}",
                case.duplicate
            );
        }
    }
    Ok(())
}
