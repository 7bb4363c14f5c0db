//! A test of an upgrade that begins with the library of the previous version, which
//! `cargo xtask test upgrade` builds from the history of the repository.

use std::path::PathBuf;

use anyhow::{Context, Result};
use idem_cluster::Shutdown;
use idem_testkit::Session;
use idem_testkit::claimers::Claimers;
use idem_testkit::private_install::{PREVIOUS, PrivateInstall, create};
use idem_testkit::ring::{SEALED, build_filters, rotate_once};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The number of messages that each phase of the test claims at least.
const PHASE: u64 = 200;

/// I1, I6: a server is upgraded as in docs/versioning.md, under load: the old library with the old
/// SQL, then the new library with the old SQL, then both new. Each message is done once, and no
/// claim is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_i6_server_is_upgraded_under_load() -> Result<()> {
    let library = |name: &str| -> Result<PathBuf> {
        let path = std::env::var_os(name).with_context(|| format!("{name} is not set"))?;
        Ok(path.into())
    };
    let copy = PrivateInstall::with_previous()?;
    let new = copy.library();
    let kept = new.with_file_name("new-idem.so");
    std::fs::copy(&new, &kept)?;
    copy.replace_library(&library("IDEM_PREVIOUS_LIBRARY")?)?;
    let mut cluster = copy.start()?;
    let session = create(&cluster, "shop", PREVIOUS).await?;
    // The previous library does not know the new extension.
    assert!(create(&cluster, "newer", VERSION).await.is_err());
    let mut claimers = Claimers::start_reconnecting(&cluster, &session).await?;
    claimers.until_claimed(PHASE).await?;
    rotate_once(&session, "standard").await?;
    claimers.until_claimed(PHASE).await?;

    // The new files are installed while the old library is in use.
    copy.replace_library(&kept)?;
    claimers.until_claimed(PHASE).await?;
    let restart = || {
        cluster.stop(Shutdown::Fast)?;
        cluster.start()
    };
    tokio::task::block_in_place(restart)?;
    let session = Session::superuser(&cluster, "shop").await?;
    create(&cluster, "newest", VERSION).await?;
    claimers.until_claimed(PHASE).await?;
    rotate_once(&session, "standard").await?;
    claimers.until_claimed(PHASE).await?;

    session.run("ALTER EXTENSION idem UPDATE").await?;
    claimers.until_claimed(PHASE).await?;
    build_filters(&session).await?;
    for _ in 0..SEALED - 2 {
        claimers.until_claimed(PHASE / 4).await?;
        rotate_once(&session, "standard").await?;
    }
    build_filters(&session).await?;
    claimers.until_claimed(PHASE).await?;
    claimers.end(&session).await
}
