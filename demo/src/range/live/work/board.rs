//! The leader board: receives the facts from the broker, claims each by its message id, and counts
//! the hits.

use std::time::Duration;

use anyhow::Result;
use idem_runtime::{Consumer, Handled, Message, Tx, consumer::Batches, terminated};

use super::{
    Post, board,
    note::Counter,
    wiring::{self, QueueSource},
};
use crate::range::{
    leader_board,
    live::{business::CONSUMER_ROLE, place::Queue},
    message::Fact,
};

/// The file that counts the deliveries to the board.
pub const GIVEN: &str = "board.given";

/// The number of concurrent transactions of a process.
const CONCURRENCY: usize = 4;

pub async fn run(post: &Post) -> Result<()> {
    let counter = Counter::open(&post.dir, GIVEN)?;
    let source = QueueSource::new(post, Queue::Board, counter);
    let pool = wiring::pool(post, CONSUMER_ROLE, CONCURRENCY + 1)?;
    let summary = Consumer::new(pool, source)
        .handle(board()?.as_str(), count)
        .concurrency(CONCURRENCY)
        .batches(Batches::new(10).linger(Duration::from_millis(10)))
        .max_deliveries(wiring::MAX_DELIVERIES)
        .back_off(wiring::FIRST_PAUSE, wiring::LONGEST_PAUSE)
        .run(terminated())
        .await?;
    eprintln!("{summary:?}");
    Ok(())
}

async fn count(tx: Tx, message: Message) -> Handled {
    let fact: Fact = message.json()?;
    // The board counts hits only, but claims misses as well.
    if fact.hit {
        leader_board::count(&*tx, &fact).await?;
    }
    Ok(vec![])
}
