//! Sends the commands of the seed in their order, some of them twice, each until the broker has
//! confirmed it.
//!
//! What it knows beyond its death is how far it was. It notes that after the broker has confirmed,
//! so a new one sends again what the old one had sent and not noted: nobody can tell these from
//! other duplicates.

use std::time::Duration;

use anyhow::{Result, bail};
use futures_util::{StreamExt, TryStreamExt, stream};
use idem_client::{OutgoingMessage, PublishError, Publisher, terminated};
use tokio::time::MissedTickBehavior;

use super::{
    Post,
    note::{Counter, Note},
    wiring::BrokerPublisher,
};
use crate::range::{live::place::COMMANDS, message::Message};

/// How many messages are under way at the same time, and between two notes.
const CHUNK: usize = 40;

/// How long to let a broker be that is away.
const BROKER_IS_AWAY: Duration = Duration::from_millis(200);

/// Where it notes how far it is.
pub const PROGRESS: &str = "producer.progress";

/// Counts what it has sent.
pub const SENT: &str = "producer.sent";

pub async fn run(post: &Post) -> Result<()> {
    let commands = post.field.traffic()?.commands;
    let plan = post.field.plan();
    let publisher = BrokerPublisher::new(post);
    let note = Note::new(&post.dir, PROGRESS);
    let mut sent = Counter::open(&post.dir, SENT)?;
    let mut done = note.read()?;
    let mut rhythm =
        tokio::time::interval(Duration::from_secs(1) * u32::try_from(CHUNK)? / post.per_second);
    rhythm.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stop = std::pin::pin!(terminated());
    while done < plan.len() {
        // A chunk that was begun is finished, so the note is exact when it is told to stop.
        tokio::select! {
            biased;
            () = &mut stop => break,
            _ = rhythm.tick() => {}
        }
        let chunk = &plan[done..plan.len().min(done + CHUNK)];
        let mut confirmed = stream::iter(chunk)
            .map(|&command| send(&publisher, &commands[command]))
            .buffer_unordered(CHUNK);
        while confirmed.try_next().await?.is_some() {
            sent.add()?;
        }
        done += chunk.len();
        note.write(done)?;
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
            Err(error @ PublishError::Permanent(_)) => bail!("command {}: {error}", command.id),
            Err(_) => tokio::time::sleep(BROKER_IS_AWAY).await,
        }
    }
}
