//! NATS with JetStream.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use idem_cluster::Home;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::port::Port;
use crate::server::{Program, Server};

/// A NATS server with JetStream, which keeps its streams in files.
pub type Nats = Server<NatsServer>;

/// The program of [`Nats`].
pub struct NatsServer {
    port: Port,
    settings: String,
}

impl Nats {
    /// Starts a new server without streams.
    pub fn start() -> Result<Self> {
        Self::start_with("")
    }

    /// Starts a new server with further lines of configuration.
    pub fn start_with(settings: &str) -> Result<Self> {
        let port = Port::claim()?;
        let settings = settings.to_owned();
        Self::start_in(
            Home::create(NatsServer::NAME)?,
            NatsServer { port, settings },
        )
    }

    /// Replaces the further lines of configuration of the running server, which reads them soon.
    pub fn reconfigure(&mut self, settings: &str) -> Result<()> {
        settings.clone_into(&mut self.program_mut().settings);
        self.program().write_settings(self.home())?;
        let pid = self.pid().context("nats is not running")?;
        Ok(kill(Pid::from_raw(pid.try_into()?), Signal::SIGHUP)?)
    }

    /// Returns the port on which the server listens, on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.program().port.number()
    }

    /// Replaces the further lines of configuration. The server reads them at its next start.
    pub fn configure(&mut self, settings: &str) {
        settings.clone_into(&mut self.program_mut().settings);
    }

    /// Returns the URL of the server: `nats://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.program().port.number())
    }
}

impl NatsServer {
    /// Writes the configuration and returns its path.
    fn write_settings(&self, home: &Home) -> Result<PathBuf> {
        let file = home.dir().join("nats.conf");
        let text = format!(
            "listen: \"127.0.0.1:{port}\"\n\
             jetstream {{ store_dir: \"{store}\", max_memory_store: 64MB, max_file_store: 4GB }}\n\
             {settings}\n",
            port = self.port.number(),
            store = home.dir().join("data").display(),
            settings = self.settings,
        );
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file)
    }
}

impl Program for NatsServer {
    const NAME: &'static str = "nats";

    fn command(&self, home: &Home) -> Result<Command> {
        let file = self.write_settings(home)?;
        let mut command = Command::new("/usr/sbin/nats-server");
        command.arg("--config").arg(file);
        Ok(command)
    }

    /// The server is ready when its greeting announces JetStream.
    fn is_ready(&self, _home: &Home) -> bool {
        self.port
            .greeting()
            .is_ok_and(|line| line.starts_with("INFO ") && line.contains("\"jetstream\":true"))
    }
}
