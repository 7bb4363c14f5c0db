//! The queues, exchanges and streams of a run, and how they are created and read.

pub mod nats;
mod queue;
pub mod rabbitmq;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::config::Kind;
pub use queue::{COMMANDS, FACTS, LETTERS, Logged, Queue, QueueState, STEPS};

/// Creates the exchanges and queues, or the streams and consumers. All of them survive a crash of
/// the broker.
pub async fn make(kind: Kind, url: &str, queues: &[Queue]) -> Result<()> {
    match kind {
        Kind::RabbitMq => rabbitmq::make(url, queues).await,
        Kind::Nats => nats::make(url, queues).await,
    }
}

/// Removes the bindings or subjects of all effects, so that publishing fails, or adds them again.
pub async fn set_topics(kind: Kind, url: &str, are_there: bool) -> Result<()> {
    match kind {
        Kind::RabbitMq => rabbitmq::set_topics(url, are_there).await,
        Kind::Nats => nats::set_topics(url, are_there).await,
    }
}

/// Returns the name and the version of the broker.
pub async fn version(kind: Kind, url: &str) -> Result<String> {
    let version = match kind {
        Kind::RabbitMq => rabbitmq::version()?,
        Kind::Nats => nats::version(url).await?,
    };
    Ok(format!("{} {version}", kind.name()))
}

/// Sends a command that has no id and no type. Returns when the broker has confirmed it.
pub async fn send_without_id(kind: Kind, url: &str, payload: Vec<u8>) -> Result<()> {
    match kind {
        Kind::RabbitMq => rabbitmq::send_without_id(url, &payload).await,
        Kind::Nats => nats::send_without_id(url, payload).await,
    }
}

/// Returns the topics, message ids and payloads of the log, in the order of their publication.
pub async fn read_log(kind: Kind, url: &str) -> Result<Vec<Logged>> {
    match kind {
        Kind::RabbitMq => rabbitmq::read_log(url).await,
        Kind::Nats => nats::read_log(url).await,
    }
}

/// The longest time after which a broker notices that a consumer has stopped.
const NOTICED_WITHIN: Duration = Duration::from_secs(30);
/// The interval between two checks.
const PAUSE: Duration = Duration::from_millis(20);

/// Returns the number of messages that wait in this queue.
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
