//! The server's first process, held so that it cannot outlive its owner.

use std::fs::File;
use std::io;
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

/// How a server is told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Sessions are ended, everything is written, the next start needs no recovery.
    Fast,
    /// Everything is dropped; the next start recovers from the log, as after a crash.
    Immediate,
}

impl Shutdown {
    fn signal(self) -> Signal {
        match self {
            Self::Fast => Signal::SIGINT,
            Self::Immediate => Signal::SIGQUIT,
        }
    }
}

/// A running server. It is a direct child of a thread of its own, and the kernel sends it SIGINT (a fast shutdown) when that
/// thread ends. The thread ends only after the server, or with the whole process, also when that is killed.
pub(crate) struct Postmaster {
    pid: Pid,
    exit: Arc<Exit>,
}

/// Filled in when the process has been reaped; a pid is signalled only under this lock and before that, so that the signal
/// cannot hit another process that got the same number.
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

impl Postmaster {
    /// Starts `command`, which is `postgres` with its arguments, writing to `log`.
    pub(crate) fn spawn(mut command: Command, log: File) -> Result<Self> {
        let owner = Pid::this();
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // Ctrl-C on the terminal is for us or for psql, not for the server.
        command.process_group(0);
        // SAFETY: between fork and exec only system calls are made. std has changed the user before, which would have
        // cleared the setting.
        unsafe { command.pre_exec(move || die_with(owner)) };

        let exit = Arc::new(Exit::default());
        let (report, started) = mpsc::channel();
        let shared = Arc::clone(&exit);
        thread::Builder::new()
            .name("postmaster".to_owned())
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
            .context("cannot run postgres")?;
        Ok(Self {
            pid: Pid::from_raw(pid.cast_signed()),
            exit,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid.as_raw().cast_unsigned()
    }

    /// How the server ended, if it did.
    pub(crate) fn exit_status(&self) -> Option<ExitStatus> {
        *self.exit.lock()
    }

    /// Tells the server to stop and waits until it did.
    pub(crate) fn stop(&self, how: Shutdown, deadline: Duration) -> Result<()> {
        self.signal(how.signal())?;
        self.wait(deadline).with_context(|| format!("{how:?} shutdown"))
    }

    /// Kills the server as a power cut would, and waits until its children have noticed: a new server could not start before.
    pub(crate) fn kill(&self, deadline: Duration) -> Result<()> {
        // Stopped, it cannot have another child that would be missed here.
        self.signal(Signal::SIGSTOP)?;
        let children = children_of(self.pid)?;
        self.signal(Signal::SIGKILL)?;
        self.wait(deadline)?;
        wait_for("the backends of a killed server end", deadline, || {
            Ok(!children.iter().any(|pid| is_alive(*pid)))
        })
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let status = self.exit.lock();
        if status.is_none() {
            kill(self.pid, signal).with_context(|| format!("cannot send {signal} to the server"))?;
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
            bail!("the server has not ended within {deadline:?}");
        }
        Ok(())
    }
}

impl Drop for Postmaster {
    fn drop(&mut self) {
        let ended = self
            .stop(Shutdown::Fast, Duration::from_secs(10))
            .or_else(|_| self.stop(Shutdown::Immediate, Duration::from_secs(10)))
            .or_else(|_| self.kill(Duration::from_secs(10)));
        if let Err(error) = ended {
            eprintln!("server {} could not be stopped: {error:#}", self.pid);
        }
    }
}

/// Runs in the child: from here on the kernel ends the server when the thread that started it ends.
fn die_with(owner: Pid) -> io::Result<()> {
    set_pdeathsig(Signal::SIGINT)?;
    // The owner may have died before the line above.
    if getppid() != owner {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    Ok(())
}

/// Waits for the end of the child, and only under the lock gives its pid back to the system.
fn reap(mut child: Child, exit: &Exit) {
    let pid = Pid::from_raw(child.id().cast_signed());
    while waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(nix::Error::EINTR) {}
    let mut status = exit.lock();
    *status = child.wait().ok().or(Some(ExitStatus::default()));
    exit.known.notify_all();
}

/// Reads the state letter and the parent of a process.
fn stat_of(pid: Pid) -> Option<(char, Pid)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // "pid (name) state ppid ...": the name may hold anything, so count from its last parenthesis.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    Some((state, Pid::from_raw(parent)))
}

/// A zombie holds nothing any more; in a container nobody may ever reap it.
fn is_alive(pid: Pid) -> bool {
    stat_of(pid).is_some_and(|(state, _)| state != 'Z')
}

fn children_of(parent: Pid) -> Result<Vec<Pid>> {
    let mut children = Vec::new();
    for entry in Path::new("/proc").read_dir()? {
        if let Some(pid) = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
            .map(Pid::from_raw)
            && stat_of(pid).is_some_and(|(_, its_parent)| its_parent == parent)
        {
            children.push(pid);
        }
    }
    Ok(children)
}
