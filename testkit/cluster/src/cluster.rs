//! A running cluster and the operations on it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::builder::Builder;
use crate::home::Home;
use crate::install::Install;
use crate::process::Process;
use crate::shutdown::Shutdown;
use crate::user::{ServerUser, clear_environment};
use crate::wait::wait_for;

/// The longest time for a start or a stop. A healthy server needs less time, also on a busy
/// machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A PostgreSQL server with its data. Dropping it stops the server and removes the data.
///
/// When a test panics, the data is kept and the path of the log is printed.
pub struct Cluster {
    // The order of the fields matters: the server is stopped before its directories are removed.
    pub(crate) postmaster: Option<Process>,
    pub(crate) install: Install,
    pub(crate) name: String,
    pub(crate) user: ServerUser,
    pub(crate) data_dir: PathBuf,
    pub(crate) settings: BTreeMap<String, String>,
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) address: Option<Ipv4Addr>,
    pub(crate) home: Home,
}

impl Cluster {
    /// Returns the builder of a new cluster with the programs of `install`.
    #[must_use]
    pub fn builder(install: &Install) -> Builder {
        Builder::new(install)
    }

    /// Returns the builder of a physical standby of this server: a base backup that then follows
    /// the server over the socket.
    #[must_use]
    pub fn standby(&self) -> Builder {
        Builder::standby_of(self)
    }

    // Properties

    /// Returns the programs of the cluster.
    #[must_use]
    pub fn install(&self) -> &Install {
        &self.install
    }

    /// Returns the name that the directory of the cluster begins with.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the data directory.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// Returns the socket directory, which is the host for libpq.
    #[must_use]
    pub fn socket_dir(&self) -> &Path {
        self.home.socket_dir()
    }

    /// Returns the loopback address that [`Builder::tcp`] found. The port is 5432.
    #[must_use]
    pub fn address(&self) -> Option<Ipv4Addr> {
        self.address
    }

    pub(crate) fn settings(&self) -> &BTreeMap<String, String> {
        &self.settings
    }

    /// Returns the process id of the server while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.postmaster.as_ref().map(Process::pid)
    }

    /// Returns the connection string of superuser `postgres`, for libpq and for `tokio-postgres`.
    #[must_use]
    pub fn connection_string(&self, database: &str) -> String {
        format!(
            "host={} user=postgres dbname={database}",
            self.socket_dir().display()
        )
    }

    /// Returns everything that the server has logged so far, over all its starts.
    pub fn log(&self) -> Result<String> {
        self.home.log()
    }

    // Start and stop

    /// Writes the configuration, starts the server and waits until it accepts connections.
    ///
    /// # Errors
    /// Fails when the server is already running, ends, or does not accept connections within a
    /// minute. The message ends with the last lines of its log.
    pub fn start(&mut self) -> Result<()> {
        if self.postmaster.is_some() {
            bail!("cluster {} is already running", self.name);
        }
        self.write_settings()?;
        let log = self.home.open_log()?;
        let mut postgres = self.user.command(&self.install.program("postgres")?);
        postgres
            .arg("-D")
            .arg(&self.data_dir)
            .current_dir(&self.data_dir);
        postgres.envs(self.environment.iter().map(|(name, value)| (name, value)));
        self.postmaster = Some(Process::spawn(postgres, log, Shutdown::IN_TURN)?);
        let ready = self.wait_until_ready(TIMEOUT);
        if ready.is_err() {
            self.postmaster = None;
        }
        ready
    }

    /// Stops the server and waits until its process has ended.
    ///
    /// # Errors
    /// Fails when the server does not end within a minute, or is not running.
    pub fn stop(&mut self, how: Shutdown) -> Result<()> {
        self.running()?
            .stop(how.signal(), TIMEOUT)
            .with_context(|| format!("{how:?} shutdown"))?;
        self.postmaster = None;
        Ok(())
    }

    /// Stops the server with a fast shutdown and starts it again with the current settings.
    pub fn restart(&mut self) -> Result<()> {
        self.stop(Shutdown::Fast)?;
        self.start()
    }

    /// Kills the server with SIGKILL and waits until it and its backends have ended, so that it can
    /// be started again.
    ///
    /// # Errors
    /// Fails when the server is not running, or when one of its processes does not end.
    pub fn kill(&mut self) -> Result<()> {
        self.running()?.kill(TIMEOUT)?;
        self.postmaster = None;
        Ok(())
    }

    /// Kills one backend with SIGKILL and waits until the server has noticed, that is, until it has
    /// begun to end all other sessions and to recover. [`Cluster::wait_until_ready`] waits for the
    /// end of the recovery.
    pub fn crash_backend(&self, pid: i32) -> Result<()> {
        self.running()?;
        kill(Pid::from_raw(pid), Signal::SIGKILL)
            .with_context(|| format!("cannot kill backend {pid}"))?;
        // The process disappears when the server reaps it. From then until the end of the recovery
        // the server accepts no sessions.
        let process = PathBuf::from(format!("/proc/{pid}"));
        wait_for("the server notices a crash", TIMEOUT, || {
            Ok(!process.exists())
        })
    }

    /// Waits until the server accepts sessions.
    ///
    /// # Errors
    /// Fails when the server has ended, or does not accept sessions before the deadline. The
    /// message ends with the last lines of its log.
    pub fn wait_until_ready(&self, deadline: Duration) -> Result<()> {
        let postmaster = self.running()?;
        let ready = wait_for("the server accepts sessions", deadline, || {
            if let Some(status) = postmaster.exit_status() {
                bail!("the server has ended ({status})");
            }
            let status = self
                .command("pg_isready")?
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()?;
            Ok(status.success())
        });
        ready.with_context(|| {
            format!(
                "cluster {}; its log ends with\n{}",
                self.name,
                self.home.log_tail()
            )
        })
    }

    /// Promotes a standby and waits until it is the primary.
    ///
    /// # Errors
    /// Fails when the cluster is not a standby, or is not promoted within a minute.
    pub fn promote(&self) -> Result<()> {
        let promoted = self.psql("postgres", "SELECT pg_promote(wait_seconds => 60)")?;
        if promoted != "t" {
            bail!("the standby was not promoted within a minute");
        }
        Ok(())
    }

    /// Changes a line of `postgresql.conf`, or removes it. The server reads the line at the next
    /// reload, or at the next restart if the setting needs one.
    pub fn configure(&mut self, name: &str, value: Option<&str>) -> Result<()> {
        match value {
            Some(value) => self.settings.insert(name.to_owned(), value.to_owned()),
            None => self.settings.remove(name),
        };
        self.write_settings()
    }

    // Client programs

    /// Runs SQL as the superuser and returns its output: rows as lines, columns separated by `|`,
    /// and nothing else.
    ///
    /// # Errors
    /// Returns the message of the first statement that failed, with its SQLSTATE.
    pub fn psql(&self, database: &str, sql: &str) -> Result<String> {
        let mut psql = self.command("psql")?;
        psql.args([
            "-XAtq",
            "-v",
            "ON_ERROR_STOP=1",
            "-v",
            "VERBOSITY=verbose",
            "-f",
            "-",
            "-d",
        ])
        .arg(database);
        // psql runs each statement of its standard input in a separate transaction, as procedures
        // require.
        finish(psql, Some(sql))
    }

    /// Runs a program (`pg_dump`, `pgbench`, `pg_isolation_regress`...) against this server and
    /// returns its standard output.
    ///
    /// # Errors
    /// Fails when the program cannot be run or fails. The message contains all its output.
    pub fn run<A>(
        &self,
        program: &str,
        args: impl IntoIterator<Item = A>,
        env: &[(&str, &str)],
    ) -> Result<String>
    where
        A: AsRef<OsStr>,
    {
        let mut command = self.command(program)?;
        command.args(args).envs(env.iter().copied());
        finish(command, None)
    }

    /// Returns a command for a client program that finds this server by its environment, for
    /// callers that handle the process themselves.
    pub fn command(&self, program: &str) -> Result<Command> {
        let mut command = Command::new(self.install.program(program)?);
        self.set_server_of(&mut command);
        Ok(command)
    }

    /// Lets a command find this server by its environment, and removes variables of the caller that
    /// would change its connection or its language.
    pub fn set_server_of(&self, command: &mut Command) {
        clear_environment(command);
        command
            .env("PGHOST", self.socket_dir())
            .env("PGUSER", "postgres")
            .env("PGDATABASE", "postgres");
    }

    fn running(&self) -> Result<&Process> {
        self.postmaster
            .as_ref()
            .with_context(|| format!("cluster {} is not running", self.name))
    }

    fn write_settings(&self) -> Result<()> {
        let mut text = String::from("# Written at every start.\n");
        for (name, value) in &self.settings {
            writeln!(text, "{name} = '{}'", value.replace('\'', "''"))?;
        }
        let file = self.data_dir.join("postgresql.conf");
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        self.user.own(&file)
    }
}

impl Cluster {
    /// Keeps data and log for an analysis. They stay until `target/clusters` is removed.
    pub fn keep(&mut self) {
        self.home.keep();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() {
            self.home.keep();
            eprintln!(
                "cluster {}: the log is in {}",
                self.name,
                self.home.log_file().display()
            );
        }
    }
}

/// Writes `input` to the program and waits for its end. The error of a program that fails contains
/// its output.
fn finish(mut command: Command, input: Option<&str>) -> Result<String> {
    let name = command.get_program().to_owned();
    command.stdin(if input.is_some() {
        Stdio::piped()
    } else {
        Stdio::null()
    });
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot run {}", name.display()))?;
    let stdin = child.stdin.take();
    let output = thread::scope(|scope| {
        // The input is written by another thread. Otherwise this process and a program that prints
        // while it reads could wait for each other.
        if let (Some(mut stdin), Some(input)) = (stdin, input) {
            // Errors of the write are ignored, because a program that ends early reports the reason
            // itself.
            scope.spawn(move || stdin.write_all(input.as_bytes()));
        }
        child.wait_with_output()
    })?;
    let mut stdout = String::from_utf8(output.stdout).context("the output is not UTF-8")?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{} failed ({}):\n{stderr}{stdout}",
            name.display(),
            output.status
        );
    }
    stdout.truncate(stdout.trim_end().len());
    Ok(stdout)
}
