//! A running cluster and what can be done to it.

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

/// Longer than any healthy start or stop takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A PostgreSQL server with its data, both gone when this is dropped.
///
/// When a test panics, the data stays and the path of the log is printed.
pub struct Cluster {
    // The order matters: the server is stopped before its directories go.
    postmaster: Option<Process>,
    install: Install,
    name: String,
    user: ServerUser,
    data_dir: PathBuf,
    settings: BTreeMap<String, String>,
    environment: Vec<(String, String)>,
    address: Option<Ipv4Addr>,
    home: Home,
}

impl Cluster {
    /// Begins a new cluster with the programs of `install`.
    #[must_use]
    pub fn builder(install: &Install) -> Builder {
        Builder::new(install)
    }

    pub(crate) fn new(
        install: Install,
        name: String,
        home: Home,
        user: ServerUser,
        data_dir: PathBuf,
        settings: BTreeMap<String, String>,
    ) -> Self {
        Self {
            postmaster: None,
            install,
            name,
            user,
            data_dir,
            settings,
            environment: Vec::new(),
            address: None,
            home,
        }
    }

    /// What the server's environment has besides, from its next start.
    pub(crate) fn set_environment(&mut self, environment: Vec<(String, String)>) {
        self.environment = environment;
    }

    pub(crate) fn set_address(&mut self, address: Option<Ipv4Addr>) {
        self.address = address;
    }

    /// Begins a physical standby of this server: a base backup that then follows it over the
    /// socket.
    #[must_use]
    pub fn standby(&self) -> Builder {
        Builder::standby_of(self)
    }

    // What it is

    /// The programs that it runs with.
    #[must_use]
    pub fn install(&self) -> &Install {
        &self.install
    }

    /// The name that its directory begins with.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its data is.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// Where its socket is: what libpq calls the host.
    #[must_use]
    pub fn socket_dir(&self) -> &Path {
        self.home.socket_dir()
    }

    /// The loopback address that [`Builder::tcp`] found; its port is 5432.
    #[must_use]
    pub fn address(&self) -> Option<Ipv4Addr> {
        self.address
    }

    pub(crate) fn settings(&self) -> &BTreeMap<String, String> {
        &self.settings
    }

    /// The process id of the server while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.postmaster.as_ref().map(Process::pid)
    }

    /// How to connect as superuser `postgres`, for libpq and for `tokio-postgres`.
    #[must_use]
    pub fn connection_string(&self, database: &str) -> String {
        format!(
            "host={} user=postgres dbname={database}",
            self.socket_dir().display()
        )
    }

    /// Everything the server has logged so far, over all its starts.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn log(&self) -> Result<String> {
        self.home.log()
    }

    // Life

    /// Writes the configuration and starts the server; returns when it answers.
    ///
    /// # Errors
    /// When it runs already, or ends, or does not answer in a minute; with the last lines of its
    /// log.
    pub fn start(&mut self) -> Result<()> {
        if self.postmaster.is_some() {
            bail!("cluster {} runs already", self.name);
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
        let answered = self.wait_until_ready(PATIENCE);
        if answered.is_err() {
            self.postmaster = None;
        }
        answered
    }

    /// Stops the server; returns when its process has ended.
    ///
    /// # Errors
    /// When it does not end in a minute, or does not run.
    pub fn stop(&mut self, how: Shutdown) -> Result<()> {
        self.running()?
            .stop(how.signal(), PATIENCE)
            .with_context(|| format!("{how:?} shutdown"))?;
        self.postmaster = None;
        Ok(())
    }

    /// Stops the server fast and starts it again, with the settings as they are now.
    ///
    /// # Errors
    /// As [`Cluster::stop`] and [`Cluster::start`].
    pub fn restart(&mut self) -> Result<()> {
        self.stop(Shutdown::Fast)?;
        self.start()
    }

    /// Kills the server with SIGKILL; returns when it and its backends are gone, so that it can be
    /// started again.
    ///
    /// # Errors
    /// When it does not run, or something of it stays.
    pub fn kill(&mut self) -> Result<()> {
        self.running()?.kill(PATIENCE)?;
        self.postmaster = None;
        Ok(())
    }

    /// Kills one backend with SIGKILL; returns when the server has noticed, that is, when it has
    /// begun to end all other sessions and to recover. [`Cluster::wait_until_ready`] says when it
    /// is back.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn crash_backend(&self, pid: i32) -> Result<()> {
        self.running()?;
        kill(Pid::from_raw(pid), Signal::SIGKILL)
            .with_context(|| format!("cannot kill backend {pid}"))?;
        // The process disappears when the server reaps it, and the server lets nobody in between
        // that and its recovery.
        let process = PathBuf::from(format!("/proc/{pid}"));
        wait_for("the server notices a crash", PATIENCE, || {
            Ok(!process.exists())
        })
    }

    /// Waits until the server lets sessions in.
    ///
    /// # Errors
    /// When it has ended, or does not answer before the deadline; with the last lines of its log.
    pub fn wait_until_ready(&self, deadline: Duration) -> Result<()> {
        let postmaster = self.running()?;
        let answered = wait_for("the server answers", deadline, || {
            if let Some(status) = postmaster.exit_status() {
                bail!("the server has ended ({status})");
            }
            let answer = self
                .command("pg_isready")?
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()?;
            Ok(answer.success())
        });
        answered.with_context(|| {
            format!(
                "cluster {}; its log ends with\n{}",
                self.name,
                self.home.log_tail()
            )
        })
    }

    /// Makes a standby the primary; returns when it is.
    ///
    /// # Errors
    /// When it is no standby, or is not promoted in a minute.
    pub fn promote(&self) -> Result<()> {
        let promoted = self.psql("postgres", "SELECT pg_promote(wait_seconds => 60)")?;
        if promoted != "t" {
            bail!("the standby has not been promoted within a minute");
        }
        Ok(())
    }

    /// Changes a line of `postgresql.conf`, or removes it; the server takes it with the next
    /// reload, or restart if it needs one.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn configure(&mut self, name: &str, value: Option<&str>) -> Result<()> {
        match value {
            Some(value) => self.settings.insert(name.to_owned(), value.to_owned()),
            None => self.settings.remove(name),
        };
        self.write_settings()
    }

    // Use

    /// Runs SQL as the superuser and returns what it printed: rows as lines, columns separated by
    /// `|`, nothing else.
    ///
    /// # Errors
    /// The message of the first statement that failed, with its SQLSTATE.
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
        // Through standard input every statement is a transaction of its own, as procedures need
        // it.
        finish(psql, Some(sql))
    }

    /// Runs a program (`pg_dump`, `pgbench`, `pg_isolation_regress`...) against this server and
    /// returns its standard output.
    ///
    /// # Errors
    /// When it cannot be run or fails; with all it printed.
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

    /// A client program that will find this server by its environment, for callers who want to
    /// handle the process themselves.
    ///
    /// # Errors
    /// When there is no such program.
    pub fn command(&self, program: &str) -> Result<Command> {
        let mut command = Command::new(self.install.program(program)?);
        clear_environment(&mut command);
        command
            .env("PGHOST", self.socket_dir())
            .env("PGUSER", "postgres")
            .env("PGDATABASE", "postgres");
        Ok(command)
    }

    fn running(&self) -> Result<&Process> {
        self.postmaster
            .as_ref()
            .with_context(|| format!("cluster {} does not run", self.name))
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

/// Feeds `input`, waits for the end, and makes a failure tell what the program said.
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
        // From another thread: a program that prints while it reads would otherwise wait for us,
        // and we for it.
        if let (Some(mut stdin), Some(input)) = (stdin, input) {
            // A program that ended early says why by itself.
            scope.spawn(move || stdin.write_all(input.as_bytes()));
        }
        child.wait_with_output()
    })?;
    let mut stdout = String::from_utf8(output.stdout).context("output that is not UTF-8")?;
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
