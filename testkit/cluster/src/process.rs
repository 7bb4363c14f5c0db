//! The first process of a server, which cannot outlive its owner.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::iter::successors;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, getppid};

use crate::wait::wait_for;

/// A running server. It is a direct child of its own thread, and the kernel sends the server the
/// first of its [`Stops`], or SIGKILL, when that thread ends. The thread ends only after the server
/// has ended, or together with the whole process, also when the process is killed.
pub struct Process {
    pid: Pid,
    exit: Arc<Exit>,
    stops: Stops,
}

/// The signals that stop a server. When a [`Process`] is dropped, it sends them in this order until
/// the server ends. If the server still runs after the last of them, or if there is none, it is
/// killed with SIGKILL, and the drop waits for its children too.
pub type Stops = &'static [Signal];

/// The time that a dropped server has to end after each of its signals.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The exit status, which is set when the process is reaped. A signal is sent only under this lock
/// and before the status is set, so that it cannot reach another process that has got the same pid.
#[derive(Default)]
struct Exit {
    status: Mutex<Option<ExitStatus>>,
    known: Condvar,
}

impl Exit {
    fn lock(&self) -> MutexGuard<'_, Option<ExitStatus>> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Process {
    /// Starts `command`, which must stay in the foreground, with its output in `log`.
    pub fn spawn(mut command: Command, log: File, stops: Stops) -> Result<Self> {
        let owner = Pid::this();
        let program = command.get_program().to_owned();
        let at_death = stops.first().copied().unwrap_or(Signal::SIGKILL);
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        // Ctrl-C on the terminal is for this process or for psql, and not for the server.
        command.process_group(0);
        // SAFETY: between fork and exec the closure makes only system calls. std changes the user
        // before it runs the closure: a change of the user clears the signal that the closure sets.
        unsafe { command.pre_exec(move || die_with(owner, at_death)) };

        let exit = Arc::new(Exit::default());
        let (report, started) = mpsc::channel();
        let shared = Arc::clone(&exit);
        thread::Builder::new()
            .name("server".to_owned())
            .spawn(move || match command.spawn() {
                Ok(child) => {
                    let _ = report.send(Ok(child.id()));
                    reap(child, &shared);
                }
                Err(error) => {
                    let _ = report.send(Err(error));
                }
            })?;
        let pid = started
            .recv()
            .context("the thread of the server ended")?
            .with_context(|| format!("cannot run {}", program.display()))?;
        Ok(Self {
            pid: Pid::from_raw(pid.cast_signed()),
            exit,
            stops,
        })
    }

    /// Returns the process id of the server.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.as_raw().cast_unsigned()
    }

    /// Returns how the server ended, or `None` while it runs.
    #[must_use]
    pub fn exit_status(&self) -> Option<ExitStatus> {
        *self.exit.lock()
    }

    /// Sends `signal` to the server and waits until the server has ended.
    ///
    /// # Errors
    /// Fails when the server has not ended at the deadline.
    pub fn stop(&self, signal: Signal, deadline: Duration) -> Result<()> {
        self.signal(signal)?;
        self.wait(deadline)
            .with_context(|| format!("shutdown by {signal}"))
    }

    /// Kills the server as a power cut would, and waits until its descendants have ended, because a
    /// new server could not start before.
    ///
    /// # Errors
    /// Fails when a process of the server still exists at the deadline.
    pub fn kill(&self, deadline: Duration) -> Result<()> {
        // The server is paused first, so that it cannot start another child that would be missed
        // here.
        self.signal(Signal::SIGSTOP)?;
        let processes = match self.exit_status() {
            Some(_) => Ok(Vec::new()),
            None => processes_of(&[self.pid()]),
        };
        self.signal(Signal::SIGKILL)?;
        self.wait(deadline)?;
        let processes = processes?;
        wait_for("the children of a killed server end", deadline, || {
            let mut children = processes.iter().filter(|pid| **pid != self.pid());
            Ok(!children.any(|pid| is_running(*pid)))
        })
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let status = self.exit.lock();
        if status.is_none() {
            kill(self.pid, signal)
                .with_context(|| format!("cannot send {signal} to the server"))?;
        }
        Ok(())
    }

    fn wait(&self, deadline: Duration) -> Result<()> {
        let (status, _) = self
            .exit
            .known
            .wait_timeout_while(self.exit.lock(), deadline, |status| status.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        if status.is_none() {
            bail!("the server did not end within {deadline:?}");
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let stopped = self
            .stops
            .iter()
            .any(|signal| self.stop(*signal, STOP_TIMEOUT).is_ok());
        if !stopped && let Err(error) = self.kill(STOP_TIMEOUT) {
            eprintln!("cannot stop server {}: {error:#}", self.pid);
        }
    }
}

/// Runs in the child process. Makes the kernel send `signal` to the server when the thread that
/// started the server ends.
fn die_with(owner: Pid, signal: Signal) -> io::Result<()> {
    set_pdeathsig(signal)?;
    // If the owner died before the line above, the kernel does not send the signal.
    if getppid() != owner {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    Ok(())
}

/// Waits for the end of the child. The system can reuse the pid only after `Child::wait`, which is
/// called under the lock.
fn reap(mut child: Child, exit: &Exit) {
    let pid = Pid::from_raw(child.id().cast_signed());
    while waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT)
        == Err(nix::Error::EINTR)
    {}
    let mut status = exit.lock();
    *status = child.wait().ok().or(Some(ExitStatus::default()));
    exit.known.notify_all();
}

/// Returns the state letter and the parent of a process.
fn stat_of(pid: u32) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // "pid (name) state ppid ...": the name may contain anything, so count from its last
    // parenthesis.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Returns whether the process runs. A zombie counts as ended: it holds no resources, and in a
/// container it may never be reaped.
#[must_use]
pub fn is_running(pid: u32) -> bool {
    stat_of(pid).is_some_and(|(state, _)| state != 'Z')
}

/// Returns the processes that run among `roots` and their descendants.
pub fn processes_of(roots: &[u32]) -> Result<Vec<u32>> {
    let mut parents = HashMap::new();
    for entry in Path::new("/proc").read_dir()? {
        let name = entry?.file_name();
        if let Some(pid) = name.to_str().and_then(|name| name.parse().ok())
            && let Some((state, parent)) = stat_of(pid)
        {
            parents.insert(pid, (state, parent));
        }
    }
    let is_found = |pid: &u32| {
        parents[pid].0 != 'Z'
            && successors(Some(*pid), |pid| {
                parents.get(pid).map(|(_, parent)| *parent)
            })
            .any(|pid| roots.contains(&pid))
    };
    Ok(parents.keys().copied().filter(is_found).collect())
}
