//! Where the messages lie: the names of queues and subjects, and how they are made.

pub mod nats;
pub mod rabbitmq;

use anyhow::Result;

use super::Kind;

/// Where the producer sends commands to.
pub const COMMANDS: &str = "range.commands";

/// Where the facts go: everyone who listens gets each.
pub const FACTS: &str = "range.facts";

/// Where the letters go that result from hits.
pub const LETTERS: &str = "range.letters";

/// Where numbered steps go, whose order of keys is checked.
pub const STEPS: &str = "range.steps";

/// What a consumer listens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// The commands.
    Commands,
    /// The facts, for the leader board.
    Board,
    /// The facts, for the observer.
    Observer,
    /// The facts, for letters that are written under a lease.
    Letters,
    /// Letters and steps, in the order of their publication. No process consumes it.
    Log,
}

/// Makes everything that messages lie in. All of it outlives the broker's death.
///
/// # Errors
/// When the broker cannot be reached, or refuses.
pub async fn make(kind: Kind, url: &str, queues: &[Queue]) -> Result<()> {
    match kind {
        Kind::RabbitMq => rabbitmq::make(url, queues).await,
        Kind::Nats => nats::make(url, queues).await,
    }
}

/// Takes the places of all effects away, so that publishers find none; or puts them back.
///
/// # Errors
/// When the broker cannot be reached, or refuses.
pub async fn set_topics(kind: Kind, url: &str, are_there: bool) -> Result<()> {
    match kind {
        Kind::RabbitMq => rabbitmq::set_topics(url, are_there).await,
        Kind::Nats => nats::set_topics(url, are_there).await,
    }
}

/// The name and the version of the broker.
///
/// # Errors
/// When it cannot be found out.
pub async fn version(kind: Kind, url: &str) -> Result<String> {
    let version = match kind {
        Kind::RabbitMq => rabbitmq::version()?,
        Kind::Nats => nats::version(url).await?,
    };
    Ok(format!("{} {version}", kind.name()))
}

/// Sends a command that has no id and no type; returns when the broker has confirmed it.
///
/// # Errors
/// When the broker cannot be reached, or does not confirm.
pub async fn send_without_id(kind: Kind, url: &str, payload: Vec<u8>) -> Result<()> {
    match kind {
        Kind::RabbitMq => rabbitmq::send_without_id(url, &payload).await,
        Kind::Nats => nats::send_without_id(url, payload).await,
    }
}

/// The payloads and the message ids of the log, in the order of their publication.
///
/// # Errors
/// When the broker cannot be reached.
pub async fn read_log(kind: Kind, url: &str) -> Result<Vec<Logged>> {
    match kind {
        Kind::RabbitMq => rabbitmq::read_log(url).await,
        Kind::Nats => nats::read_log(url).await,
    }
}

/// An effect as the broker has taken it.
#[derive(Clone, Debug)]
pub struct Logged {
    /// Its topic.
    pub topic: String,
    /// Its message id.
    pub message_id: String,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// How many messages wait for a consumer of this queue.
pub async fn waiting(kind: Kind, url: &str, queue: Queue) -> Result<u64> {
    match kind {
        Kind::RabbitMq => rabbitmq::waiting(url, queue.name()).await,
        Kind::Nats => nats::waiting(url, queue).await,
    }
}

impl Queue {
    /// Those of every live range.
    pub const ALL: [Self; 3] = [Self::Commands, Self::Board, Self::Observer];

    /// Those of a campaign.
    pub const CAMPAIGN: [Self; 5] = [
        Self::Commands,
        Self::Board,
        Self::Observer,
        Self::Letters,
        Self::Log,
    ];

    /// The name of the queue, or of the durable consumer.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Commands => COMMANDS,
            Self::Board => "range.board",
            Self::Observer => "range.observer",
            Self::Letters => "range.writers",
            Self::Log => "range.log",
        }
    }

    /// What comes in.
    #[must_use]
    pub fn subject(self) -> &'static str {
        match self {
            Self::Commands => COMMANDS,
            Self::Board | Self::Observer | Self::Letters => FACTS,
            Self::Log => "range.log",
        }
    }
}
