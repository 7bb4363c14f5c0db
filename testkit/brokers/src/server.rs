//! The common part of all throwaway servers: start, stop and removal.

use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use idem_cluster::{Home, Process, Stops, wait_for};
use nix::sys::signal::Signal;

/// The longest time for a start or a stop. A healthy server needs less time, also on a busy
/// machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The part that differs from server to server.
pub trait Program {
    /// The name of the server in messages, and the beginning of the name of its directory.
    const NAME: &'static str;

    /// Writes the configuration and returns the command, which must stay in the foreground.
    fn command(&self, home: &Home) -> Result<Command>;

    /// Returns whether the server accepts clients.
    fn is_ready(&self, home: &Home) -> bool;
}

/// A server with its data. Dropping it stops the server and removes the data.
///
/// When a test panics, the data is kept and the path of the log is printed.
pub struct Server<P: Program> {
    // The order of the fields matters: the server is stopped before its directories are removed.
    process: Option<Process>,
    program: P,
    home: Home,
}

impl<P: Program> Server<P> {
    /// A dropped server is killed: it needs no clean shutdown, because its data is not read again.
    const STOPS: Stops = &[];

    pub(crate) fn start_in(home: Home, program: P) -> Result<Self> {
        let mut server = Self {
            process: None,
            program,
            home,
        };
        server.start_again()?;
        Ok(server)
    }

    pub(crate) fn program(&self) -> &P {
        &self.program
    }

    pub(crate) fn program_mut(&mut self) -> &mut P {
        &mut self.program
    }

    pub(crate) fn home(&self) -> &Home {
        &self.home
    }

    /// Returns the process id of the server while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// Returns everything that the server has logged so far, over all its starts.
    pub fn log(&self) -> Result<String> {
        self.home.log()
    }

    /// Starts the server on its port and with its data, and waits until it accepts clients.
    ///
    /// # Errors
    /// Fails when the server is already running, ends, or does not accept clients within two
    /// minutes. The message ends with the last lines of its log.
    pub fn start_again(&mut self) -> Result<()> {
        if self.process.is_some() {
            bail!("{} is already running", P::NAME);
        }
        let mut command = self.program.command(&self.home)?;
        command.current_dir(self.home.dir());
        let process = Process::spawn(command, self.home.open_log()?, Self::STOPS)?;
        wait_for("the server accepts clients", TIMEOUT, || {
            match process.exit_status() {
                Some(status) => bail!("the server ended ({status})"),
                None => Ok(self.program.is_ready(&self.home)),
            }
        })
        .with_context(|| {
            format!(
                "cannot start {}; its log ends with\n{}",
                P::NAME,
                self.home.log_tail()
            )
        })?;
        self.process = Some(process);
        Ok(())
    }

    /// Sends SIGTERM to the server and waits until it has ended, with all data written.
    ///
    /// # Errors
    /// Fails when the server is not running, or does not end within two minutes.
    pub fn stop(&mut self) -> Result<()> {
        self.running()?.stop(Signal::SIGTERM, TIMEOUT)?;
        self.process = None;
        Ok(())
    }

    /// Kills the server with SIGKILL and waits until it and its children have ended, so that it can
    /// be started again.
    ///
    /// # Errors
    /// Fails when the server is not running, or when one of its processes does not end.
    pub fn kill(&mut self) -> Result<()> {
        self.running()?.kill(TIMEOUT)?;
        self.process = None;
        Ok(())
    }

    /// Kills the server with SIGKILL and starts it again.
    pub fn crash(&mut self) -> Result<()> {
        self.kill()?;
        self.start_again()
    }

    fn running(&self) -> Result<&Process> {
        self.process
            .as_ref()
            .with_context(|| format!("{} is not running", P::NAME))
    }
}

impl<P: Program> Drop for Server<P> {
    /// Panics when the server has ended by itself, because no client of a test may make it end.
    fn drop(&mut self) {
        let ended = self.process.as_ref().and_then(Process::exit_status);
        if thread::panicking() || ended.is_some() {
            self.home.keep();
            eprintln!(
                "{}: the log is in {}",
                P::NAME,
                self.home.log_file().display()
            );
        }
        if let Some(status) = ended
            && !thread::panicking()
        {
            panic!(
                "{} has ended by itself ({status}); its log ends with\n{}",
                P::NAME,
                self.home.log_tail()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    struct Broken;

    impl Program for Broken {
        const NAME: &'static str = "broken";

        fn command(&self, _home: &Home) -> Result<Command> {
            let mut command = Command::new("sh");
            command.args(["-c", "echo the disk is on fire; exit 3"]);
            Ok(command)
        }

        fn is_ready(&self, _home: &Home) -> bool {
            false
        }
    }

    struct Brief;

    impl Program for Brief {
        const NAME: &'static str = "brief";

        fn command(&self, home: &Home) -> Result<Command> {
            let mut command = Command::new("sh");
            command.args(["-c", "until [ -e end ]; do sleep 0.01; done; exit 4"]);
            command.current_dir(home.dir());
            Ok(command)
        }

        fn is_ready(&self, _home: &Home) -> bool {
            true
        }
    }

    /// A server with a child that ends some time after the server, and then removes a file.
    struct Parent(PathBuf);

    impl Program for Parent {
        const NAME: &'static str = "parent";

        fn command(&self, _home: &Home) -> Result<Command> {
            let mut command = Command::new("sh");
            command.args([
                "-c",
                "(touch \"$0\"; while kill -0 $$; do sleep 0.3; done; rm \"$0\") & wait",
            ]);
            command.arg(&self.0);
            Ok(command)
        }

        fn is_ready(&self, _home: &Home) -> bool {
            self.0.exists()
        }
    }

    #[test]
    fn dropped_server_has_no_child_left() {
        let elsewhere = Home::create("child").unwrap();
        let file = elsewhere.dir().join("running");
        let home = Home::create("parent").unwrap();
        drop(Server::start_in(home, Parent(file.clone())).unwrap());
        assert!(!file.exists(), "the child still runs");
    }

    #[test]
    #[should_panic(expected = "brief has ended by itself (exit status: 4)")]
    fn server_that_ends_by_itself_fails_its_test() {
        let server = Server::start_in(Home::create("brief").unwrap(), Brief).unwrap();
        std::fs::write(server.home().dir().join("end"), "").unwrap();
        let process = server.process.as_ref().unwrap();
        wait_for("the server ends", TIMEOUT, || {
            Ok(process.exit_status().is_some())
        })
        .unwrap();
    }

    #[test]
    fn error_of_a_failed_start_contains_the_end_of_the_log() {
        let error = Server::start_in(Home::create("broken").unwrap(), Broken)
            .err()
            .unwrap();
        let message = format!("{error:#}");
        assert!(
            message.contains("the disk is on fire") && message.contains("exit status: 3"),
            "{message}"
        );
    }
}
