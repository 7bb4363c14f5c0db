//! The broker of a run, of either kind.

use anyhow::Result;
use idem_brokers::{Nats, RabbitMq};

use super::Kind;

/// A running broker, which is stopped when this value is dropped.
pub enum Broker {
    /// RabbitMQ.
    RabbitMq(RabbitMq),
    /// NATS with JetStream.
    Nats(Nats),
}

impl Broker {
    /// Starts an empty broker. It blocks for seconds, so it must not run in an async context.
    pub fn start(kind: Kind) -> Result<Self> {
        Ok(match kind {
            Kind::RabbitMq => Self::RabbitMq(RabbitMq::start()?),
            Kind::Nats => Self::Nats(Nats::start()?),
        })
    }

    /// Returns the URL of the broker.
    #[must_use]
    pub fn url(&self) -> String {
        match self {
            Self::RabbitMq(broker) => broker.url(),
            Self::Nats(broker) => broker.url(),
        }
    }

    /// Returns the port on which the broker listens, on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        match self {
            Self::RabbitMq(broker) => broker.port(),
            Self::Nats(broker) => broker.port(),
        }
    }

    /// Kills the broker with SIGKILL and restarts it with its data and on its port.
    pub fn crash(&mut self) -> Result<()> {
        match self {
            Self::RabbitMq(broker) => {
                broker.kill()?;
                broker.start_again()
            }
            Self::Nats(broker) => {
                broker.kill()?;
                broker.start_again()
            }
        }
    }
}
