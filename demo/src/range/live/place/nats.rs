//! The NATS JetStream streams of a run, with a durable consumer for each queue.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use async_nats::jetstream::{
    self, Context,
    consumer::{AckPolicy, PullConsumer, pull},
    stream,
};
use futures_util::StreamExt;

use super::queue::{COMMANDS, FACTS, LETTERS, Logged, Queue, QueueState, STEPS};

/// The time after which a message that is not acknowledged is redelivered, because its consumer may
/// have been killed.
const ACK_WAIT: Duration = Duration::from_secs(5);

/// The duplicate window of streams in which the broker must not drop duplicates: the consumers must
/// receive the duplicates of the producer.
const SHORTEST_WINDOW: Duration = Duration::from_millis(100);

/// The duplicate window of the other streams, in which the broker may drop the duplicates of the
/// relays.
const USUAL_WINDOW: Duration = Duration::from_secs(120);

/// The time for which the streams of a campaign keep commands and facts. It is shorter than the
/// retention of the claims.
pub const OLDEST_MESSAGE: Duration = Duration::from_secs(200);

/// Creates streams and consumers, all of which survive a crash of the broker.
pub async fn make(url: &str, queues: &[Queue]) -> Result<()> {
    let context = open(url).await?;
    let is_campaign = queues.contains(&Queue::Log);
    let mut streams = vec![
        stream(COMMANDS, &[COMMANDS], is_campaign),
        stream(FACTS, &[FACTS], is_campaign),
    ];
    if is_campaign {
        streams.push(stream(Queue::Log.subject(), &[LETTERS, STEPS], is_campaign));
    }
    for stream in streams {
        context.create_stream(stream).await?;
    }
    for queue in queues.iter().filter(|queue| **queue != Queue::Log) {
        context
            .get_stream(plain(queue.subject()))
            .await?
            .create_consumer(pull::Config {
                durable_name: Some(plain(queue.name())),
                ack_policy: AckPolicy::Explicit,
                ack_wait: ACK_WAIT,
                max_ack_pending: 10_000,
                ..pull::Config::default()
            })
            .await?;
    }
    Ok(())
}

/// Returns the number of messages that the consumer of a queue has not acknowledged, whether they
/// are delivered or not.
pub async fn state(url: &str, queue: Queue) -> Result<QueueState> {
    let stream = open(url).await?.get_stream(plain(queue.subject())).await?;
    let mut consumer: PullConsumer = stream
        .get_consumer(&plain(queue.name()))
        .await
        .map_err(|error| anyhow!("consumer {}: {error}", queue.name()))?;
    let info = consumer.info().await?;
    Ok(QueueState {
        messages: info.num_pending + u64::try_from(info.num_ack_pending)?,
        consumers: 0,
    })
}

fn stream(name: &str, subjects: &[&str], is_campaign: bool) -> stream::Config {
    // In a campaign all windows are short, because the log must also contain what relays publish
    // twice.
    let duplicate_window = match is_campaign || name == COMMANDS {
        true => SHORTEST_WINDOW,
        false => USUAL_WINDOW,
    };
    // A killed server may lose acknowledgements and redeliver whatever is still in the stream, so
    // the stream deletes messages before their claims expire. The log has no such limit, because it
    // is read only at the end.
    let max_age = match name {
        COMMANDS | FACTS if is_campaign => OLDEST_MESSAGE,
        _ => Duration::ZERO,
    };
    stream::Config {
        max_age,
        name: plain(name),
        subjects: subjects.iter().map(|&subject| subject.to_owned()).collect(),
        storage: stream::StorageType::File,
        duplicate_window,
        ..stream::Config::default()
    }
}

/// Removes the subjects of the effects of a campaign from their streams, or adds them again.
pub async fn set_topics(url: &str, are_there: bool) -> Result<()> {
    let context = open(url).await?;
    for (name, subjects) in [
        (FACTS, &[FACTS][..]),
        (Queue::Log.subject(), &[LETTERS, STEPS]),
    ] {
        let nowhere = format!("nowhere.{name}");
        let subjects = if are_there {
            subjects
        } else {
            &[nowhere.as_str()][..]
        };
        context.update_stream(stream(name, subjects, true)).await?;
    }
    Ok(())
}

/// Returns the version of the server.
pub async fn version(url: &str) -> Result<String> {
    Ok(async_nats::connect(url).await?.server_info().version)
}

/// Sends a command that has no id.
pub async fn send_without_id(url: &str, payload: Vec<u8>) -> Result<()> {
    open(url)
        .await?
        .publish(COMMANDS, payload.into())
        .await?
        .await?;
    Ok(())
}

/// Returns all messages of the log.
pub async fn read_log(url: &str) -> Result<Vec<Logged>> {
    let mut stream = open(url)
        .await?
        .get_stream(plain(Queue::Log.subject()))
        .await?;
    let waiting = stream.info().await?.state.messages;
    let consumer: PullConsumer = stream.create_consumer(pull::Config::default()).await?;
    let mut messages = consumer.messages().await?;
    let mut logged = Vec::new();
    while (logged.len() as u64) < waiting {
        let message = messages
            .next()
            .await
            .context("the log has fewer messages than its stream reported")??;
        message.ack().await.map_err(|error| anyhow!("{error}"))?;
        let id = message
            .headers
            .as_ref()
            .and_then(|headers| headers.get("Nats-Msg-Id"));
        logged.push(Logged {
            topic: message.subject.to_string(),
            message_id: id
                .context("an effect in the log has no message id")?
                .to_string(),
            payload: message.payload.to_vec(),
        });
    }
    Ok(logged)
}

/// Returns a valid name for a stream or a consumer, which must not contain a dot.
#[must_use]
pub fn plain(name: &str) -> String {
    name.replace('.', "-")
}

async fn open(url: &str) -> Result<Context> {
    Ok(jetstream::new(async_nats::connect(url).await?))
}
