//! Where the messages lie: the names of queues and subjects, and how they are made.

pub mod nats;
pub mod rabbitmq;

use anyhow::Result;

use super::Kind;

/// Where the producer sends commands to.
pub const COMMANDS: &str = "range.commands";

/// Where the facts go: everyone who listens gets each.
pub const FACTS: &str = "range.facts";

/// Where messages end that a consumer has refused.
pub const DEAD: &str = "range.dead";

/// What a consumer listens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// The commands.
    Commands,
    /// The facts, for the leader board.
    Board,
    /// The facts, for the observer.
    Observer,
}

/// Makes everything that messages lie in. All of it outlives the broker's death.
pub async fn make(kind: Kind, url: &str) -> Result<()> {
    match kind {
        Kind::RabbitMq => rabbitmq::make(url).await,
        Kind::Nats => nats::make(url).await,
    }
}

/// How many messages wait for a consumer of this queue.
pub async fn waiting(kind: Kind, url: &str, queue: Queue) -> Result<u64> {
    match kind {
        Kind::RabbitMq => rabbitmq::waiting(url, queue.name()).await,
        Kind::Nats => nats::waiting(url, queue).await,
    }
}

/// How many messages were refused for good.
pub async fn refused(kind: Kind, url: &str) -> Result<u64> {
    match kind {
        Kind::RabbitMq => rabbitmq::waiting(url, DEAD).await,
        Kind::Nats => nats::refused(url).await,
    }
}

impl Queue {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Commands, Self::Board, Self::Observer];

    /// The name of the queue, or of the durable consumer.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Commands => COMMANDS,
            Self::Board => "range.board",
            Self::Observer => "range.observer",
        }
    }

    /// What comes in.
    #[must_use]
    pub fn subject(self) -> &'static str {
        match self {
            Self::Commands => COMMANDS,
            Self::Board | Self::Observer => FACTS,
        }
    }
}
