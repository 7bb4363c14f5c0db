//! The worker processes of a story.

use std::{
    ffi::OsStr,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use super::fate::Fate;
use idem_testkit::clock::Clock;

/// The longest time for one step of a worker, with a margin for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A worker process, which is killed when this value is dropped. The worker prints its progress to
/// its standard output, line by line, and may wait for a line on its standard input.
pub struct Worker {
    child: Child,
    /// The worker ends when this pipe is closed, so that it does not outlive this process.
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
    /// The clock is kept, because its drop removes the file that the worker opens when it starts.
    _clock: Option<Clock>,
}

/// The way in which a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The worker exited with success.
    Done,
    /// The worker was killed with SIGKILL.
    Killed,
    /// The worker failed. Its error is on its standard error.
    Failed(ExitStatus),
}

impl Worker {
    /// Starts a process of `program`, which is the binary `story-worker`.
    pub fn start<A: AsRef<OsStr>>(
        program: &Path,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<Self> {
        Self::start_with(program, arguments, None)
    }

    /// Starts a process of `program` with this wall clock, if there is one.
    pub fn start_with<A: AsRef<OsStr>>(
        program: &Path,
        arguments: impl IntoIterator<Item = A>,
        clock: Option<Clock>,
    ) -> Result<Self> {
        let mut child = Command::new(program)
            .args(arguments)
            .envs(clock.iter().flat_map(Clock::environment))
            // Without a backtrace, an error message has only a few lines.
            .env_remove("RUST_BACKTRACE")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        let stdin = child
            .stdin
            .take()
            .context("the worker has no standard input")?;
        let stdout = child
            .stdout
            .take()
            .context("the worker has no standard output")?;
        Ok(Self {
            child,
            stdin,
            stdout: BufReader::new(stdout).lines(),
            _clock: clock,
        })
    }

    /// Waits for the next line that the worker prints, and returns it.
    ///
    /// # Errors
    /// When the worker ends, or prints nothing within a minute.
    pub async fn says(&mut self) -> Result<String> {
        let line = tokio::time::timeout(PATIENCE, self.stdout.next_line())
            .await
            .context("the worker printed nothing within a minute")??;
        line.context("the worker has ended")
    }

    /// Waits for the next line that the worker prints.
    ///
    /// # Errors
    /// When the line differs from `what`, when the worker ends, or when it prints nothing within a
    /// minute.
    pub async fn says_that(&mut self, what: &str) -> Result<()> {
        let line = self.says().await?;
        ensure!(
            line == what,
            "the worker printed {line:?} instead of {what:?}"
        );
        Ok(())
    }

    /// Writes a line to the standard input of the worker, so that it continues.
    pub async fn go_on(&mut self) -> Result<()> {
        self.stdin.write_all(b"go on\n").await?;
        Ok(())
    }

    /// Pauses the worker with SIGSTOP.
    pub fn freeze(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    /// Resumes a paused worker with SIGCONT.
    pub fn thaw(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// Stops the worker with SIGTERM, and waits until it has finished its messages in progress and
    /// ended.
    ///
    /// # Errors
    /// When the worker fails, or does not end within a minute.
    pub async fn dismiss(self) -> Result<()> {
        self.signal(Signal::SIGTERM)?;
        let ending = self.end(&Fate::default()).await?;
        ensure!(
            ending == Ending::Done,
            "the worker did not end with success: {ending:?}"
        );
        Ok(())
    }

    /// Returns whether the worker has ended.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Kills the worker with SIGKILL, and waits until it has ended.
    pub async fn kill(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Waits until the worker has ended. If `fate` plans a kill, kills the worker with SIGKILL at
    /// the planned point. Returns how the worker ended.
    ///
    /// # Errors
    /// When the worker does not end within a minute.
    pub async fn end(mut self, fate: &Fate) -> Result<Ending> {
        let ended = tokio::time::timeout(PATIENCE, async {
            tokio::select! {
                // The output of a killed worker is not needed.
                () = fate.strikes() => self.child.kill().await?,
                status = self.child.wait() => drop(status?),
            }
            self.child.wait().await
        });
        let Ok(status) = ended.await else {
            bail!("the worker does not end within {PATIENCE:?}");
        };
        let status = status?;
        Ok(match status {
            _ if status.success() => Ending::Done,
            _ if status.signal() == Some(Signal::SIGKILL as i32) => Ending::Killed,
            _ => Ending::Failed(status),
        })
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        // The system cannot reuse the process id, because this process has not waited for the end
        // of the worker.
        let pid = self.child.id().context("the worker has ended")?;
        Ok(kill(Pid::from_raw(pid.cast_signed()), signal)?)
    }
}
