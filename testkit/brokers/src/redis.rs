//! Redis.

use std::process::Command;

use anyhow::Result;
use idem_cluster::Home;

use crate::port::Port;
use crate::server::{Program, Server};

/// A Redis server that writes each command to its file before it replies.
pub type Redis = Server<RedisServer>;

/// The program of [`Redis`].
pub struct RedisServer {
    port: Port,
}

impl Redis {
    /// Starts a new server without keys.
    pub fn start() -> Result<Self> {
        let port = Port::claim()?;
        Self::start_in(Home::create(RedisServer::NAME)?, RedisServer { port })
    }

    /// Returns the URL of the server: `redis://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.program().port.number())
    }
}

impl Program for RedisServer {
    const NAME: &'static str = "redis";

    fn command(&self, home: &Home) -> Result<Command> {
        let mut command = Command::new("/usr/bin/redis-server");
        command.args(["--bind", "127.0.0.1"]);
        command.args(["--port", &self.port.number().to_string()]);
        command.args(["--appendonly", "yes", "--appendfsync", "always"]);
        command.args(["--save", "", "--maxmemory-policy", "noeviction"]);
        command.arg("--dir").arg(home.dir());
        Ok(command)
    }

    /// The server is ready when it replies to `PING`. Before that it reads its file.
    fn is_ready(&self, _home: &Home) -> bool {
        self.port.replies(b"PING\r\n", b"+PONG\r\n")
    }
}
