//! The queues, exchanges and streams of a run: their names, and how they are created and read.

pub mod nats;
pub mod rabbitmq;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::Kind;

/// The topic of the commands.
pub const COMMANDS: &str = "range.commands";

/// The topic of the facts. Every queue with this topic receives each fact.
pub const FACTS: &str = "range.facts";

/// The topic of the letters that result from hits.
pub const LETTERS: &str = "range.letters";

/// The topic of numbered steps. Their order is checked for each key.
pub const STEPS: &str = "range.steps";

/// A queue of RabbitMQ, or a durable consumer of NATS.
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
    /// Letters and steps, in the order of their publication. No process consumes this queue.
    Log,
}

/// Creates the exchanges and queues, or the streams and consumers. All of them survive a crash of
/// the broker.
///
/// # Errors
/// When the broker cannot be reached or returns an error.
pub async fn make(kind: Kind, url: &str, queues: &[Queue]) -> Result<()> {
    match kind {
        Kind::RabbitMq => rabbitmq::make(url, queues).await,
        Kind::Nats => nats::make(url, queues).await,
    }
}

/// Removes the bindings or subjects of all effects, so that publishing fails, or adds them again.
///
/// # Errors
/// When the broker cannot be reached or returns an error.
pub async fn set_topics(kind: Kind, url: &str, are_there: bool) -> Result<()> {
    match kind {
        Kind::RabbitMq => rabbitmq::set_topics(url, are_there).await,
        Kind::Nats => nats::set_topics(url, are_there).await,
    }
}

/// Returns the name and the version of the broker.
///
/// # Errors
/// When the version cannot be determined.
pub async fn version(kind: Kind, url: &str) -> Result<String> {
    let version = match kind {
        Kind::RabbitMq => rabbitmq::version()?,
        Kind::Nats => nats::version(url).await?,
    };
    Ok(format!("{} {version}", kind.name()))
}

/// Sends a command that has no id and no type. Returns when the broker has confirmed it.
///
/// # Errors
/// When the broker cannot be reached or does not confirm.
pub async fn send_without_id(kind: Kind, url: &str, payload: Vec<u8>) -> Result<()> {
    match kind {
        Kind::RabbitMq => rabbitmq::send_without_id(url, &payload).await,
        Kind::Nats => nats::send_without_id(url, payload).await,
    }
}

/// Returns the topics, message ids and payloads of the log, in the order of their publication.
///
/// # Errors
/// When the broker cannot be reached.
pub async fn read_log(kind: Kind, url: &str) -> Result<Vec<Logged>> {
    match kind {
        Kind::RabbitMq => rabbitmq::read_log(url).await,
        Kind::Nats => nats::read_log(url).await,
    }
}

/// An effect as it was published to the broker.
#[derive(Clone, Debug)]
pub struct Logged {
    /// The topic.
    pub topic: String,
    /// The message id.
    pub message_id: String,
    /// The payload.
    pub payload: Vec<u8>,
}

/// What a broker knows about a queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueState {
    /// The messages that wait. With NATS these are also the messages that are delivered and not
    /// acknowledged.
    pub messages: u64,
    /// The consumers, which may hold further messages. Always zero with NATS.
    pub consumers: u64,
}

/// The longest time after which a broker notices that a consumer has stopped.
const NOTICED_WITHIN: Duration = Duration::from_secs(30);
/// The interval between two checks.
const PAUSE: Duration = Duration::from_millis(20);

/// Returns the number of messages that wait in this queue.
///
/// # Errors
/// When the broker cannot be reached or returns an error.
pub async fn waiting(kind: Kind, url: &str, queue: Queue) -> Result<u64> {
    Ok(state(kind, url, queue).await?.messages)
}

/// Returns the number of messages in this queue after all its consumers have stopped.
///
/// RabbitMQ needs some time until it has the messages of a stopped consumer back. A quorum queue
/// has them back when the consumer is gone.
///
/// # Errors
/// When the broker cannot be reached or returns an error, or when the queue keeps a consumer.
pub async fn left(kind: Kind, url: &str, queue: Queue) -> Result<u64> {
    let until = Instant::now() + NOTICED_WITHIN;
    loop {
        let state = state(kind, url, queue).await?;
        if state.consumers == 0 {
            return Ok(state.messages);
        }
        ensure!(
            Instant::now() < until,
            "{} has {} consumers, although its processes have stopped",
            queue.name(),
            state.consumers
        );
        tokio::time::sleep(PAUSE).await;
    }
}

async fn state(kind: Kind, url: &str, queue: Queue) -> Result<QueueState> {
    match kind {
        Kind::RabbitMq => rabbitmq::state(url, queue.name()).await,
        Kind::Nats => nats::state(url, queue).await,
    }
}

impl Queue {
    /// The queues of a live range.
    pub const ALL: [Self; 3] = [Self::Commands, Self::Board, Self::Observer];

    /// The queues of a campaign.
    pub const CAMPAIGN: [Self; 5] = [
        Self::Commands,
        Self::Board,
        Self::Observer,
        Self::Letters,
        Self::Log,
    ];

    /// Returns the name of the queue, or of the durable consumer.
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

    /// Returns the subject of the queue, which is also the name of its stream in NATS.
    #[must_use]
    pub fn subject(self) -> &'static str {
        match self {
            Self::Commands => COMMANDS,
            Self::Board | Self::Observer | Self::Letters => FACTS,
            Self::Log => "range.log",
        }
    }
}
