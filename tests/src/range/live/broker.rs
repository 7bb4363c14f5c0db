//! A broker of the run's own, of either kind.

use anyhow::Result;
use idem_brokers::{Nats, RabbitMq};

use super::Kind;

/// A running broker, gone with this.
pub enum Broker {
    /// RabbitMQ.
    RabbitMq(RabbitMq),
    /// NATS with JetStream.
    Nats(Nats),
}

impl Broker {
    /// Starts one without anything in it. Takes seconds: not for an async context.
    pub fn start(kind: Kind) -> Result<Self> {
        Ok(match kind {
            Kind::RabbitMq => Self::RabbitMq(RabbitMq::start()?),
            Kind::Nats => Self::Nats(Nats::start()?),
        })
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> String {
        match self {
            Self::RabbitMq(broker) => broker.url(),
            Self::Nats(broker) => broker.url(),
        }
    }

    /// The port where it listens, on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        match self {
            Self::RabbitMq(broker) => broker.port(),
            Self::Nats(broker) => broker.port(),
        }
    }

    /// Kills it with SIGKILL and starts it again, on its data and its port.
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
