//! Processes that do the work of a story.

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
use crate::clock::Clock;

/// Longer than any healthy worker takes for a step on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A worker process, killed when dropped. It says on its standard output what it does, line by
/// line, and may wait to be told to go on.
pub struct Worker {
    child: Child,
    /// It ends when this pipe does, so that it does not outlive whoever started it.
    ears: ChildStdin,
    mouth: Lines<BufReader<ChildStdout>>,
    /// The process reads its file when it starts.
    _clock: Option<Clock>,
}

/// How a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It says that nothing is left to do.
    Done,
    /// SIGKILL.
    Killed,
    /// It has failed, and says why on its standard error.
    Failed(ExitStatus),
}

impl Worker {
    /// Starts a process of `program` (the binary `story-worker`).
    pub fn start<A: AsRef<OsStr>>(
        program: &Path,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<Self> {
        Self::start_with(program, arguments, None)
    }

    /// The same, with more in its environment.
    pub fn start_with<A: AsRef<OsStr>>(
        program: &Path,
        arguments: impl IntoIterator<Item = A>,
        clock: Option<Clock>,
    ) -> Result<Self> {
        let mut child = Command::new(program)
            .args(arguments)
            .envs(clock.iter().flat_map(Clock::environment))
            // What it says at its end shall be read in a few lines.
            .env_remove("RUST_BACKTRACE")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        let ears = child.stdin.take().context("it has a standard input")?;
        let mouth = child.stdout.take().context("it has a standard output")?;
        Ok(Self {
            child,
            ears,
            mouth: BufReader::new(mouth).lines(),
            _clock: clock,
        })
    }

    /// The next line that it says.
    ///
    /// # Errors
    /// When it ends, or says nothing for a minute.
    pub async fn says(&mut self) -> Result<String> {
        let line = tokio::time::timeout(PATIENCE, self.mouth.next_line())
            .await
            .context("the worker says nothing")??;
        line.context("the worker has ended")
    }

    /// Waits until it says exactly this.
    ///
    /// # Errors
    /// When it says anything else.
    pub async fn says_that(&mut self, what: &str) -> Result<()> {
        let line = self.says().await?;
        ensure!(
            line == what,
            "the worker was to say {what:?}, and said {line:?}"
        );
        Ok(())
    }

    /// Tells it to go on.
    pub async fn go_on(&mut self) -> Result<()> {
        self.ears.write_all(b"go on\n").await?;
        Ok(())
    }

    /// Stops it where it is, with SIGSTOP.
    pub fn freeze(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    /// Lets it go on as if nothing had been.
    pub fn thaw(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// Tells it to finish what it has in hand, with SIGTERM, and waits until it did.
    ///
    /// # Errors
    /// When it fails, or does not end in a minute.
    pub async fn dismiss(self) -> Result<()> {
        self.signal(Signal::SIGTERM)?;
        let ending = self.end(&Fate::default()).await?;
        ensure!(
            ending == Ending::Done,
            "the worker did not end well: {ending:?}"
        );
        Ok(())
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Kills it with SIGKILL; returns when it is gone.
    pub async fn kill(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Waits for its end, or kills it when its fate strikes.
    ///
    /// # Errors
    /// When it does not end in a minute.
    pub async fn end(mut self, fate: &Fate) -> Result<Ending> {
        let ended = tokio::time::timeout(PATIENCE, async {
            tokio::select! {
                // The words of who has died are nothing to wait for.
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
        // It has not been waited for, so its number is nobody else's.
        let pid = self.child.id().context("the worker has ended")?;
        Ok(kill(Pid::from_raw(pid.cast_signed()), signal)?)
    }
}
