//! Claims with synchronous_commit = off, and a crash.

use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{cluster, connect, with_idem};

/// What a consumer does, and what it and its repetition return.
struct Case {
    /// Committed before.
    prelude: Option<&'static str>,
    /// Committed with synchronous_commit = off.
    first: &'static str,
    /// What a duplicate asks.
    duplicate: &'static str,
    /// The broker forgets the message for this.
    acknowledged: &'static str,
    /// The result of the duplicate's question when the first commit is lost.
    lost: &'static str,
}

const CLAIM: &str = "BEGIN; SELECT idem_try_claim('m', 'orders'); COMMIT";
const RECEIVE: &str = "SELECT idem_receive('m', 'inbox', '{}')";
const ACQUIRE: &str = "SELECT outcome FROM idem_acquire('m', 'work')";

const CASES: [Case; 3] = [
    Case {
        prelude: None,
        first: CLAIM,
        duplicate: CLAIM,
        acknowledged: "f",
        lost: "t",
    },
    Case {
        prelude: Some(ACQUIRE),
        first: "SELECT idem_bury('m', 'work', token, '{}', 'broken') FROM idem.leases",
        duplicate: ACQUIRE,
        acknowledged: "dead",
        lost: "in_progress",
    },
    Case {
        prelude: None,
        first: RECEIVE,
        duplicate: RECEIVE,
        acknowledged: "f",
        lost: "t",
    },
];

/// A commit is visible and not on disk, a duplicate is acknowledged, and the server crashes. With idem.wait_for_flush the
/// commit is there afterwards; without it the commit is lost, and its message with it.
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
            // The first claim of a destination creates it.
            writer
                .run("BEGIN; SELECT idem_try_claim('first', name) FROM unnest('{orders,inbox,work}'::text[]) name; COMMIT")
                .await?;
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
            duplicate.run(&format!("SET idem.wait_for_flush = {wait_for_flush}")).await?;
            // It writes nothing that a commit would have to flush.
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
