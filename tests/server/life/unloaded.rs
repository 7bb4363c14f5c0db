//! Tests of a server that has not preloaded the library: installing fails, and what an administrator
//! needs to leave this state works.

use anyhow::{Result, ensure};
use idem_testkit::{Dump, Session};

use super::{claim, cluster};

/// I12: without the preloaded library CREATE EXTENSION fails and leaves nothing behind. In a database
/// that has the extension already, health names the missing line, and DROP EXTENSION and pg_dump
/// work. The dump has the claims.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i12_extension_is_not_installed_without_preloading() -> Result<()> {
    let mut server = cluster("unloaded")?.start()?;
    let session = Session::in_database_with_idem(&server, "shop").await?;
    assert_eq!(claim(&session, "m1").await?, "t");
    drop(session);
    server.configure("shared_preload_libraries", None)?;
    server.restart()?;

    let session = Session::superuser(&server, "shop").await?;
    let health = session.text("SELECT * FROM idem_health()").await?;
    ensure!(
        health.starts_with("worker|critical|")
            && health.contains("shared_preload_libraries = 'idem'"),
        "{health}"
    );
    let dump = Dump::of(&server, "shop")?;
    session.run("DROP EXTENSION idem CASCADE").await?;
    let refusal = session.refused("CREATE EXTENSION idem").await?;
    assert_eq!(refusal.sqlstate, "58000");
    ensure!(
        refusal.hint.contains("shared_preload_libraries"),
        "{refusal:?}"
    );
    let left = "SELECT count(*) FROM pg_namespace WHERE nspname = 'idem'";
    assert_eq!(session.text(left).await?, "0");
    drop(session);

    server.configure("shared_preload_libraries", Some("idem"))?;
    server.restart()?;
    Session::superuser(&server, "postgres")
        .await?
        .run("CREATE DATABASE copy")
        .await?;
    dump.load(&server, "copy", &[])?;
    let copy = Session::superuser(&server, "copy").await?;
    copy.run("SELECT idem_finish_restore()").await?;
    assert_eq!(claim(&copy, "m1").await?, "f");
    Ok(())
}
