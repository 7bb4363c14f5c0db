//! The leader board: receives the facts from the broker, claims each by its message id, and counts
//! the hits.

use anyhow::Result;
use idem_runtime::{Handled, Message, Tx, terminated};

use super::wiring;
use crate::range::{
    business,
    live::{
        place::Queue,
        post::{BOARD, Post},
    },
    message::Fact,
};

pub async fn run(post: &Post) -> Result<()> {
    let consumer = wiring::batching(post, Queue::Board)?;
    let summary = consumer.handle(BOARD, count).run(terminated()).await?;
    eprintln!("{summary:?}");
    Ok(())
}

async fn count(tx: Tx, message: Message) -> Handled {
    let fact: Fact = message.json()?;
    // The board counts hits only, but claims misses as well.
    if fact.hit {
        business::count_hit(&*tx, &fact).await?;
    }
    Ok(vec![])
}
