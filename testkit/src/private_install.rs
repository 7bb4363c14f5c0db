//! A private copy of PostgreSQL, because a server reads the scripts of extensions from its own
//! share directory only.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use anyhow::{Result, ensure};
use idem_cluster::{Cluster, Home, Install};

use super::Session;

/// Creates a database with this version of the extension, and connects to it as superuser.
pub async fn create(cluster: &Cluster, database: &str, version: &str) -> Result<Session> {
    let session = Session::in_empty_database(cluster, database).await?;
    session
        .run(&format!("CREATE EXTENSION idem VERSION '{version}'"))
        .await?;
    Ok(session)
}

/// A private copy of PostgreSQL with scripts of the test.
pub struct PrivateInstall {
    install: Install,
    // This field is declared last, so that the directory is removed last.
    _home: Home,
}

impl PrivateInstall {
    /// Links the files of the shared install into a new directory, which needs no space.
    pub fn new() -> Result<Self> {
        let shared = Install::from_env()?;
        // If this process is killed, the next server that starts removes the directory.
        let home = Home::create("install")?;
        // The server's user must be able to enter the directory.
        fs::set_permissions(home.dir(), Permissions::from_mode(0o755))?;
        let linked = Command::new("cp")
            .args(["--recursive", "--link"])
            .arg(shared.root().join("usr"))
            .arg(home.dir())
            .status()?;
        ensure!(linked.success(), "cp: {linked}");
        let install = Install::open(home.dir(), shared.version())?;
        Ok(Self {
            install,
            _home: home,
        })
    }

    /// Adds a version of the extension, or replaces its script.
    pub fn add(&self, version: &str, script: &str) -> Result<()> {
        let directory = self.install.share_dir().join("extension");
        let draft = directory.join("draft");
        // The file is replaced and not changed, because it is also a file of the shared install.
        fs::write(&draft, script)?;
        fs::rename(draft, directory.join(format!("idem--{version}.sql")))?;
        Ok(())
    }

    /// Starts a server without a worker, because a worker changes rows.
    pub fn start(&self) -> Result<Cluster> {
        Cluster::builder(&self.install)
            .name("install-script")
            .setting("shared_buffers", "32MB")
            .setting("idem.databases", "none")
            .start()
    }
}
