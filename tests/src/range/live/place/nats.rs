//! The streams of NATS JetStream, with a durable consumer for each queue.

use std::time::Duration;

use anyhow::Result;
use async_nats::jetstream::{
    self, Context,
    consumer::{AckPolicy, PullConsumer, pull},
    stream,
};

use super::{COMMANDS, DEAD, FACTS, Queue};

/// A message that is not acknowledged by then comes again: whoever had it may have been killed.
const ACK_WAIT: Duration = Duration::from_secs(5);

/// How long the broker drops duplicates. It shall not hide those of the producer from the consumers...
const SHORTEST_WINDOW: Duration = Duration::from_millis(100);

/// ... and may well drop those of the relays.
const USUAL_WINDOW: Duration = Duration::from_secs(120);

/// Makes streams and consumers, all of which outlive the broker's death.
pub async fn make(url: &str) -> Result<()> {
    let context = open(url).await?;
    for (subject, duplicate_window) in [(COMMANDS, SHORTEST_WINDOW), (FACTS, USUAL_WINDOW), (DEAD, USUAL_WINDOW)] {
        context
            .create_stream(stream::Config {
                name: plain(subject),
                subjects: vec![subject.to_owned()],
                storage: stream::StorageType::File,
                duplicate_window,
                ..stream::Config::default()
            })
            .await?;
    }
    for queue in Queue::ALL {
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
        .map_err(|error| anyhow::anyhow!("consumer {}: {error}", queue.name()))?;
    let info = consumer.info().await?;
    Ok(info.num_pending + u64::try_from(info.num_ack_pending)?)
}

/// How many messages were refused.
pub async fn refused(url: &str) -> Result<u64> {
    let stream = open(url).await?.get_stream(plain(DEAD)).await?;
    Ok(stream.cached_info().state.messages)
}

/// A name as streams and consumers may have it: a dot is not allowed there.
#[must_use]
pub fn plain(name: &str) -> String {
    name.replace('.', "-")
}

async fn open(url: &str) -> Result<Context> {
    Ok(jetstream::new(async_nats::connect(url).await?))
}
