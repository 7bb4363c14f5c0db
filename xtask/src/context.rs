//! The workspace, its directories and its commands.

use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};
use idem_cluster::{Install, workspace_root};
use xshell::Shell;

use crate::build::Variant;
use crate::suite::Suite;

/// The workspace, the Debian suite and the suite's major version of PostgreSQL.
pub struct Context {
    /// Runs programs from the root of the workspace.
    pub sh: Shell,
    pub root: PathBuf,
    pub suite: Suite,
    pub pg: u16,
}

impl Context {
    pub fn new(suite: Suite) -> Result<Self> {
        let sh = Shell::new()?;
        let root = workspace_root();
        sh.change_dir(&root);
        let pg = suite.postgresql(&sh)?;
        Ok(Self {
            sh,
            root,
            suite,
            pg,
        })
    }

    pub fn target(&self) -> PathBuf {
        self.root.join("target")
    }

    /// Returns the directory with the files of the extension, as a tree that can be copied to `/`.
    pub fn package_dir(&self, variant: Variant) -> PathBuf {
        self.target()
            .join("package")
            .join(format!("{}{}", self.pg, variant.suffix()))
    }

    /// Returns the directory of the private copy of PostgreSQL with this variant of the extension.
    pub fn install_root(&self, variant: Variant) -> PathBuf {
        let mut root = Install::default_root(self.pg).into_os_string();
        root.push(variant.suffix());
        root.into()
    }

    /// Returns Debian's own `pg_config` of this version. The `pg_config` in the search path is that
    /// of the newest version that is installed.
    pub fn pg_config(&self) -> PathBuf {
        PathBuf::from(format!("/usr/lib/postgresql/{}/bin/pg_config", self.pg))
    }

    /// Returns the feature of the extension for this version.
    pub fn feature(&self) -> String {
        format!("pg{}", self.pg)
    }

    /// Waits until no other command changes files under `target`. Other commands wait until the
    /// returned file is dropped.
    pub fn alone(&self) -> Result<File> {
        self.sh.create_dir(self.target())?;
        let file = File::create(self.target().join("xtask.lock"))?;
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            eprintln!("another cargo xtask is running in this directory: waiting until it ends");
            file.lock()?;
        }
        Ok(file)
    }

    /// Returns a cargo command in this workspace.
    pub fn cargo<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let mut command = idem_cluster::cargo();
        command.args(arguments);
        self.name_server(&mut command);
        command
    }

    /// Sets the variables by which a command and the programs that it runs find PostgreSQL with the
    /// shipped extension.
    pub fn name_server(&self, command: &mut Command) {
        command
            .env("PGRX_HOME", self.target().join("pgrx"))
            .env("IDEM_PG_INSTALL", self.install_root(Variant::Shipped))
            .env("IDEM_PG_VERSION", self.pg.to_string());
    }
}

/// Returns the directory in which cargo keeps downloads and installs programs.
pub fn cargo_home() -> Result<PathBuf> {
    let named = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    named
        .or_else(|| std::env::home_dir().map(|home| home.join(".cargo")))
        .context("the home directory is unknown")
}
