//! What all throwaway servers have in common: how they live and end.

use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use idem_cluster::{Home, Process, Stops, wait_for};
use nix::sys::signal::Signal;

/// Longer than any healthy start or stop takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// What distinguishes one server from another.
pub trait Program {
    /// For messages, and for the name of its directory.
    const NAME: &'static str;

    /// Writes the configuration and names the program, which has to stay in the foreground.
    fn command(&self, home: &Home) -> Result<Command>;

    /// Whether it serves.
    fn is_ready(&self, home: &Home) -> bool;
}

/// A server with its data, both gone when this is dropped.
///
/// When a test panics, the data stays and the path of the log is printed.
pub struct Server<P: Program> {
    // The order matters: the server is stopped before its directories go.
    process: Option<Process>,
    program: P,
    home: Home,
}

impl<P: Program> Server<P> {
    /// Nobody will read what a dropped server would write on its way out.
    const STOPS: Stops = &[Signal::SIGKILL];

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

    /// The process id of the server while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// Everything the server has logged so far, over all its starts.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn log(&self) -> Result<String> {
        self.home.log()
    }

    /// Starts the server on the port and with the data that it had; returns when it serves.
    ///
    /// # Errors
    /// When it runs already, or ends, or does not serve in two minutes; with the last lines of its
    /// log.
    pub fn start_again(&mut self) -> Result<()> {
        if self.process.is_some() {
            bail!("{} runs already", P::NAME);
        }
        let mut command = self.program.command(&self.home)?;
        command.current_dir(self.home.dir());
        let process = Process::spawn(command, self.home.open_log()?, Self::STOPS)?;
        wait_for("it serves", PATIENCE, || match process.exit_status() {
            Some(status) => bail!("it has ended ({status})"),
            None => Ok(self.program.is_ready(&self.home)),
        })
        .with_context(|| {
            format!(
                "{} does not start; its log ends with\n{}",
                P::NAME,
                self.home.log_tail()
            )
        })?;
        self.process = Some(process);
        Ok(())
    }

    /// Tells the server to stop and waits until it did; everything is written.
    ///
    /// # Errors
    /// When it does not run, or does not end in two minutes.
    pub fn stop(&mut self) -> Result<()> {
        self.running()?.stop(Signal::SIGTERM, PATIENCE)?;
        self.process = None;
        Ok(())
    }

    /// Kills the server with SIGKILL; returns when it and its children are gone, so that it can be
    /// started again.
    ///
    /// # Errors
    /// When it does not run, or something of it stays.
    pub fn kill(&mut self) -> Result<()> {
        self.running()?.kill(PATIENCE)?;
        self.process = None;
        Ok(())
    }

    fn running(&self) -> Result<&Process> {
        self.process
            .as_ref()
            .with_context(|| format!("{} does not run", P::NAME))
    }
}

impl<P: Program> Drop for Server<P> {
    /// # Panics
    /// When the server has ended by itself: a client must not bring it down.
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

    #[test]
    #[should_panic(expected = "brief has ended by itself (exit status: 4)")]
    fn server_that_ends_by_itself_fails_its_test() {
        let server = Server::start_in(Home::create("brief").unwrap(), Brief).unwrap();
        std::fs::write(server.home().dir().join("end"), "").unwrap();
        let process = server.process.as_ref().unwrap();
        wait_for("it has ended", PATIENCE, || {
            Ok(process.exit_status().is_some())
        })
        .unwrap();
    }

    #[test]
    fn a_server_that_cannot_start_is_an_error_with_the_end_of_its_log() {
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
