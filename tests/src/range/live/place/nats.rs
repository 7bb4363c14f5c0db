//! The streams of NATS JetStream, with a durable consumer for each queue.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use async_nats::jetstream::{
    self, Context,
    consumer::{AckPolicy, PullConsumer, pull},
    stream,
};
use futures_util::StreamExt;

use super::{COMMANDS, FACTS, LETTERS, Logged, Queue, STEPS};

/// A message that is not acknowledged by then comes again: whoever had it may have been killed.
const ACK_WAIT: Duration = Duration::from_secs(5);

/// How long the broker drops duplicates. It shall not hide those of the producer from the
/// consumers...
const SHORTEST_WINDOW: Duration = Duration::from_millis(100);

/// ... and may well drop those of the relays.
const USUAL_WINDOW: Duration = Duration::from_secs(120);

/// How long a campaign keeps commands and facts: its claims are kept longer.
pub const OLDEST_MESSAGE: Duration = Duration::from_secs(200);

/// Makes streams and consumers, all of which outlive the broker's death.
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

/// How many messages a consumer has not acknowledged, those that are in somebody's hands included.
pub async fn waiting(url: &str, queue: Queue) -> Result<u64> {
    let stream = open(url).await?.get_stream(plain(queue.subject())).await?;
    let mut consumer: PullConsumer = stream
        .get_consumer(&plain(queue.name()))
        .await
        .map_err(|error| anyhow!("consumer {}: {error}", queue.name()))?;
    let info = consumer.info().await?;
    Ok(info.num_pending + u64::try_from(info.num_ack_pending)?)
}

fn stream(name: &str, subjects: &[&str], is_campaign: bool) -> stream::Config {
    // The log of a campaign shows what relays publish again, too.
    let duplicate_window = match is_campaign || name == COMMANDS {
        true => SHORTEST_WINDOW,
        false => USUAL_WINDOW,
    };
    // A killed server may forget what its consumers have acknowledged. Then it delivers again what
    // is in the stream, so that is deleted before the claims are. The log is read at the end.
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

/// Takes the subjects of a campaign's effects from their streams, or puts them back.
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

/// The version of the server.
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

/// Everything in the log.
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
        let message = messages.next().await.context("the log ends early")??;
        message.ack().await.map_err(|error| anyhow!("{error}"))?;
        let id = message
            .headers
            .as_ref()
            .and_then(|headers| headers.get("Nats-Msg-Id"));
        logged.push(Logged {
            topic: message.subject.to_string(),
            message_id: id.context("an effect without a message id")?.to_string(),
            payload: message.payload.to_vec(),
        });
    }
    Ok(logged)
}

/// A name as streams and consumers may have it: a dot is not allowed there.
#[must_use]
pub fn plain(name: &str) -> String {
    name.replace('.', "-")
}

async fn open(url: &str) -> Result<Context> {
    Ok(jetstream::new(async_nats::connect(url).await?))
}
