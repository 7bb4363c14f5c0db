//! Writes a letter for each hit, under a lease and outside a transaction.

use std::time::Duration;

use anyhow::Result;
use idem_client::Effect;
use idem_runtime::{Handled, Message, lease::LeaseContext, terminated};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::wiring;
use crate::range::{
    live::{
        place::{LETTERS, Queue},
        post::Post,
    },
    message::Fact,
};

/// The destination that writes the letters.
const DESTINATION: &str = "range.letters";

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
    let summary = wiring::consumer(post, Queue::Letters)?
        .handle_leased(DESTINATION, write)
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
