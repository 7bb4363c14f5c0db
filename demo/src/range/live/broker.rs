//! The broker of a run, of either kind.

use anyhow::Result;
use idem_brokers::{Nats, RabbitMq};

use super::config::Kind;

/// A running broker, which is stopped when this value is dropped.
pub struct Broker {
    /// The URL of the broker.
    pub url: String,
    /// The port on which the broker listens, on 127.0.0.1.
    pub port: u16,
    crash: Box<dyn FnMut() -> Result<()> + Send>,
}

impl Broker {
    /// Starts an empty broker. It blocks for seconds, so it must not run in an async context.
    pub fn start(kind: Kind) -> Result<Self> {
        Ok(match kind {
            Kind::RabbitMq => {
                let mut server = RabbitMq::start()?;
                Self {
                    url: server.url(),
                    port: server.port(),
                    crash: Box::new(move || server.crash()),
                }
            }
            Kind::Nats => {
                let mut server = Nats::start()?;
                Self {
                    url: server.url(),
                    port: server.port(),
                    crash: Box::new(move || server.crash()),
                }
            }
        })
    }

    /// Kills the broker with SIGKILL and restarts it with its data and on its port.
    pub fn crash(&mut self) -> Result<()> {
        (self.crash)()
    }
}
