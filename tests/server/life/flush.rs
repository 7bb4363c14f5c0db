//! Tests of a crash after commits with synchronous_commit = off.

use idem_testkit::Session;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::cluster;

/// A statement of a consumer, and the results of its duplicate.
struct Case {
    /// A statement that is executed before `first`, and that is on disk when `first` is executed.
    prelude: Option<&'static str>,
    /// The statement that is committed with synchronous_commit = off.
    first: &'static str,
    /// Whether VACUUM freezes the committed row before the commit is on disk.
    is_frozen: bool,
    duplicate: &'static str,
    /// The result of the duplicate with which a consumer acknowledges the message.
    acknowledged: &'static str,
    /// The result of the duplicate when the first commit is lost.
    lost: &'static str,
}

/// Creates the destinations: each destination is created by its first claim.
const CREATE_DESTINATIONS: &str = "BEGIN;
    SELECT idem_try_claim('first', name) FROM unnest('{orders,inbox,work}'::text[]) name;
    COMMIT";
const CLAIM: &str = "BEGIN; SELECT idem_try_claim('m', 'orders'); COMMIT";
const FREEZE: &str = "VACUUM (FREEZE, TRUNCATE false) idem.inbox_standard_0";
const ALL_FROZEN: &str = "SELECT bool_and('HEAP_XMIN_FROZEN' = ANY (combined_flags))
    FROM heap_page_items(get_raw_page('idem.inbox_standard_0', 0)),
         heap_tuple_infomask_flags(t_infomask, t_infomask2)";
const RECEIVE: &str = "SELECT idem_receive('m', 'inbox', '{}')";
const ACQUIRE: &str = "SELECT outcome FROM idem_acquire('m', 'work', '1 hour')";

const CASES: [Case; 4] = [
    Case {
        prelude: None,
        first: CLAIM,
        is_frozen: false,
        duplicate: CLAIM,
        acknowledged: "f",
        lost: "t",
    },
    Case {
        prelude: None,
        first: CLAIM,
        is_frozen: true,
        duplicate: CLAIM,
        acknowledged: "f",
        lost: "t",
    },
    Case {
        prelude: Some(ACQUIRE),
        first: "SELECT idem_bury('m', 'work', token, '{}', 'broken') FROM idem.leases",
        is_frozen: false,
        duplicate: ACQUIRE,
        acknowledged: "dead",
        lost: "in_progress",
    },
    Case {
        prelude: None,
        first: RECEIVE,
        is_frozen: false,
        duplicate: RECEIVE,
        acknowledged: "f",
        lost: "t",
    },
];

/// I4: a commit is visible and not on disk, a duplicate is acknowledged, and the server crashes.
/// With idem.wait_for_flush the commit exists after the crash. Without this setting the commit and
/// the message are lost.
#[tokio::test]
async fn i4_acknowledged_duplicate_outlives_a_crash() -> Result<()> {
    let server = cluster("flush")?
        .setting("idem.databases", "none")
        .setting("autovacuum", "off")
        .setting("wal_writer_delay", "10s")
        .start()?;
    Session::in_database_with_idem(&server, "app").await?;
    let app = Session::superuser(&server, "app").await?;
    app.run("CREATE EXTENSION pageinspect").await?;
    for case in &CASES {
        for (wait_for_flush, after) in [("off", case.lost), ("on", case.acknowledged)] {
            let (writer, duplicate) = (
                Session::superuser(&server, "app").await?,
                Session::superuser(&server, "app").await?,
            );
            writer
                .run("DROP EXTENSION idem CASCADE; CREATE EXTENSION idem")
                .await?;
            writer.run(CREATE_DESTINATIONS).await?;
            if let Some(prelude) = case.prelude {
                writer.run(prelude).await?;
            }
            // Stop the WAL writer until it is killed, so that nothing writes the commit to disk.
            let walwriter = writer
                .text("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
                .await?
                .parse()
                .context("the WAL writer has no process id")?;
            kill(Pid::from_raw(walwriter), Signal::SIGSTOP)?;
            writer.run("SET synchronous_commit = off").await?;
            writer.run(case.first).await?;
            if case.is_frozen {
                writer.run(FREEZE).await?;
                assert_eq!(writer.text(ALL_FROZEN).await?, "t");
            }
            duplicate
                .run(&format!("SET idem.wait_for_flush = {wait_for_flush}"))
                .await?;
            // The commit of the duplicate must not flush the WAL.
            duplicate.run("SET synchronous_commit = off").await?;
            assert_eq!(
                duplicate.text(case.duplicate).await?,
                case.acknowledged,
                "{}",
                case.duplicate
            );

            server.crash_backend(walwriter)?;
            server.wait_until_ready(Duration::from_secs(30))?;
            let reader = Session::superuser(&server, "app").await?;
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
