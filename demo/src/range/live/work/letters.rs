//! Writes a letter for each hit, under a lease and outside a transaction.

use std::time::Duration;

use anyhow::Result;
use idem_client::Effect;
use idem_runtime::{Consumer, Handled, Message, lease::LeaseContext, terminated};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    Post, letters,
    note::Counter,
    wiring::{self, QueueSource},
};
use crate::range::{
    live::{
        business::CONSUMER_ROLE,
        place::{LETTERS, Queue},
    },
    message::Fact,
};

/// The file that counts the deliveries to this role.
pub const GIVEN: &str = "letters.given";

/// The number of messages that a process handles concurrently.
const CONCURRENCY: usize = 4;

/// The time that a handler takes to write a letter.
const WRITING: Duration = Duration::from_millis(10);

/// The payload of a letter.
#[derive(Debug, Serialize, Deserialize)]
pub struct Letter {
    /// The attempt that hit.
    pub attempt: Uuid,
    /// The random id of the execution that wrote the letter. It distinguishes the letters of two
    /// executions, which have the same message id.
    pub execution: Uuid,
}

pub async fn run(post: &Post) -> Result<()> {
    let counter = Counter::open(&post.dir, GIVEN)?;
    let source = QueueSource::new(post, Queue::Letters, counter);
    let pool = wiring::pool(post, CONSUMER_ROLE, CONCURRENCY + 1)?;
    let summary = Consumer::new(pool, source)
        .handle_leased(letters()?.as_str(), write)
        .concurrency(CONCURRENCY)
        .run(terminated())
        .await?;
    eprintln!("{summary:?}");
    Ok(())
}

async fn write(_work: LeaseContext, message: Message) -> Handled {
    let fact: Fact = message.json()?;
    tokio::time::sleep(WRITING).await;
    if !fact.hit {
        return Ok(vec![]);
    }
    let letter = Letter {
        attempt: fact.attempt,
        execution: Uuid::from_u128(rand::random()),
    };
    Ok(vec![
        Effect::json(LETTERS, &letter)?.key(fact.player.to_string()),
    ])
}
