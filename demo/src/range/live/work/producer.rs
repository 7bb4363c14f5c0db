//! Sends the commands of the seed in order, some of them twice, and retries each until the broker
//! has confirmed it.
//!
//! The only state that survives a kill is the number of commands that were sent. The producer notes
//! this number after the broker has confirmed the commands. So a new producer repeats commands that
//! the old producer sent and did not note. These messages are duplicates like all other duplicates.

use std::time::Duration;

use anyhow::{Result, bail};
use futures_util::{StreamExt, TryStreamExt, stream};
use idem_runtime::{OutgoingMessage, PublishError, Publisher, terminated};
use tokio::time::MissedTickBehavior;

use super::{note::Counter, wiring::BrokerPublisher};
use crate::range::{
    live::{place::COMMANDS, post::Post},
    message::Message,
};

/// The number of messages in a chunk. The messages of a chunk are sent concurrently, and the
/// producer writes its note after each chunk.
const CHUNK: usize = 40;

/// The pause before a failed send is retried.
const BROKER_IS_AWAY: Duration = Duration::from_millis(200);

/// The file that counts the entries of the plan that were sent.
pub const PROGRESS: &str = "producer.progress";

/// The file that counts the messages that were sent.
pub const SENT: &str = "producer.sent";

pub async fn run(post: &Post) -> Result<()> {
    let commands = post.field.traffic()?.commands;
    let plan = post.field.plan();
    let publisher = BrokerPublisher::new(post.broker, &post.broker_url);
    let mut note = Counter::open(&post.dir, PROGRESS)?;
    let mut sent = Counter::open(&post.dir, SENT)?;
    let mut done = usize::try_from(Counter::read(&post.dir, PROGRESS)?)?;
    let mut ticks =
        tokio::time::interval(Duration::from_secs(1) * u32::try_from(CHUNK)? / post.per_second);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stop = std::pin::pin!(terminated());
    while done < plan.len() {
        // SIGTERM is only handled between two chunks, so that the note is exact after a stop.
        tokio::select! {
            biased;
            () = &mut stop => break,
            _ = ticks.tick() => {}
        }
        let chunk = &plan[done..plan.len().min(done + CHUNK)];
        let mut confirmed = stream::iter(chunk)
            .map(|&command| send(&publisher, &commands[command]))
            .buffer_unordered(CHUNK);
        while confirmed.try_next().await?.is_some() {
            sent.add(1)?;
        }
        done += chunk.len();
        note.add(chunk.len())?;
    }
    Ok(())
}

async fn send(publisher: &impl Publisher, command: &Message) -> Result<()> {
    let mut message = OutgoingMessage::new(command.id, COMMANDS, command.body.clone());
    message.message_type = Some(command.kind.name().to_owned());
    message.content_type = Some("application/json".to_owned());
    loop {
        match publisher.publish(&message).await {
            Ok(()) => return Ok(()),
            Err(error @ PublishError::Permanent(_)) => {
                bail!("cannot send command {}: {error}", command.id)
            }
            Err(_) => tokio::time::sleep(BROKER_IS_AWAY).await,
        }
    }
}
