//! Tests of the versions: the library serves the versions of the extension that it supports, and
//! for all other versions it returns an error that names both versions.

use anyhow::{Result, ensure};
use idem_cluster::Cluster;
use idem_testkit::ring::{make_due, rotations};
use idem_testkit::{Session, until};

use super::{claim, cluster};

/// The version of the library: all crates of the workspace have one version.
const LIBRARY: &str = env!("CARGO_PKG_VERSION");

async fn set_version(session: &Session, version: &str) -> Result<()> {
    session
        .run(&format!(
            "UPDATE pg_extension SET extversion = '{version}' WHERE extname = 'idem'"
        ))
        .await
}

async fn fails_by_version(
    session: &Session,
    function: &str,
    version: &str,
    hint: &str,
) -> Result<()> {
    let refusal = session.refused(&format!("SELECT {function}")).await?;
    assert_eq!(refusal.sqlstate, "58000", "{function}: {refusal:?}");
    ensure!(
        refusal.message.contains(version) && refusal.message.contains(LIBRARY),
        "{function}: the error names both versions: {refusal:?}"
    );
    ensure!(refusal.hint.contains(hint), "{function}: {refusal:?}");
    Ok(())
}

/// Counts the warnings of the worker. A step during which the version changes logs its own warning.
fn mismatches(cluster: &Cluster) -> Result<usize> {
    let is_refusal = |line: &&str| {
        line.contains("WARNING:") && line.contains("9.9.9") && !line.contains("maintenance step")
    };
    Ok(cluster.log()?.lines().filter(is_refusal).count())
}

/// Goal: the library returns an error for an older or newer extension that it does not support.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_versions_fail_and_are_named() -> Result<()> {
    let cluster = cluster("versions")?
        .setting("idem.databases", "none")
        .start()?;
    let old = Session::in_database_with_idem(&cluster, "shop").await?;
    assert_eq!(
        old.text("SELECT extversion FROM pg_extension WHERE extname = 'idem'")
            .await?,
        LIBRARY
    );
    assert_eq!(claim(&old, "m1").await?, "t");
    for (version, hint) in [
        ("0.0.9", "ALTER EXTENSION idem UPDATE"),
        ("9.9.9", "restart"),
    ] {
        // Make sessions that have cached the rings read the rings again, as an update script does.
        set_version(&old, version).await?;
        old.run("SELECT idem.invalidate('idem.ring'::regclass)")
            .await?;
        let new = Session::superuser(&cluster, "shop").await?;
        for session in [&old, &new] {
            for function in [
                "idem_try_claim('m2', 'orders')",
                "idem_is_claimed('m1', 'orders')",
                "idem_effects('m1', 'orders')",
                "idem_receive('m3', 'orders', '1'::jsonb)",
                "idem_send('t', '1'::jsonb)",
                "idem_calls('m1', 'orders')",
                "idem_relay_partitions('default')",
                "idem_relay_next('default')",
                "idem_relay_ack('default', 0, 1)",
                "idem_hand_over('default', '{t}')",
            ] {
                fails_by_version(session, function, version, hint).await?;
            }
        }
    }
    set_version(&old, LIBRARY).await?;
    let new = Session::superuser(&cluster, "shop").await?;
    for session in [&old, &new] {
        assert_eq!(claim(session, "m1").await?, "f", "the claims still exist");
    }
    Ok(())
}

/// Goal: the worker skips an extension that it does not support, logs this once, and continues when
/// the versions match.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_skips_an_unknown_version() -> Result<()> {
    let cluster = cluster("versions-worker")?
        .setting("idem.naptime", "100ms")
        .start()?;
    let session = Session::in_database_with_idem(&cluster, "shop").await?;
    assert_eq!(claim(&session, "m1").await?, "t");
    set_version(&session, "9.9.9").await?;
    until("the worker has noticed", async || {
        Ok(mismatches(&cluster)? > 0)
    })
    .await?;
    make_due(&session, "standard").await?;
    // The worker still runs passes: the rings of another database continue to rotate.
    let other = Session::in_database_with_idem(&cluster, "other").await?;
    assert_eq!(claim(&other, "m1").await?, "t");
    for n in 1..=3 {
        make_due(&other, "standard").await?;
        until("the other database rotates", async || {
            Ok(rotations(&other, "standard").await? == n)
        })
        .await?;
    }
    assert_eq!(
        rotations(&session, "standard").await?,
        0,
        "the worker skips the database"
    );
    assert_eq!(mismatches(&cluster)?, 1, "the mismatch is logged once");
    set_version(&session, LIBRARY).await?;
    until("the ring rotates", async || {
        Ok(rotations(&session, "standard").await? == 1)
    })
    .await
}
