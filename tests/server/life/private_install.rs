//! A private copy of PostgreSQL, because a server reads the scripts of extensions from its own
//! share directory only.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use anyhow::{Result, ensure};
use idem_cluster::{Cluster, Home, Install, workspace_root};

use super::connect;

/// The released version before this one.
pub(super) const PREVIOUS: &str = "0.2.0";

/// Creates a database with this version of the extension.
pub(super) async fn create(cluster: &Cluster, database: &str, version: &str) -> Result<()> {
    connect(cluster, "postgres")
        .await?
        .run(&format!(
            "CREATE DATABASE \"{database}\" TEMPLATE template0"
        ))
        .await?;
    connect(cluster, database)
        .await?
        .run(&format!("CREATE EXTENSION idem VERSION '{version}'"))
        .await
}

/// A private copy of PostgreSQL with scripts of the test.
pub(super) struct PrivateInstall {
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

    /// Adds the released script of the previous version. The upgrade script is in each copy.
    pub fn with_previous() -> Result<Self> {
        let copy = Self::new()?;
        let script = workspace_root().join(format!("sql/install/idem--{PREVIOUS}.sql"));
        copy.add(PREVIOUS, &fs::read_to_string(script)?)?;
        Ok(copy)
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
