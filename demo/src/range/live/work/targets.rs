//! Handles the commands. A shot is decided by the position that its target has *now*, and the
//! result is recorded as an effect.

use std::time::Duration;

use anyhow::Result;
use idem_client::Effect;
use idem_runtime::{Consumer, Handled, HandlerError, Message, Tx, consumer::Batches, terminated};

use super::{
    Post,
    note::Counter,
    targets,
    wiring::{self, QueueSource},
};
use crate::range::{
    business as range,
    live::{
        business::{self, CONSUMER_ROLE},
        place::{FACTS, Queue},
        poison::{self, Poison},
    },
    message::Kind,
};

/// The file that counts the deliveries to the targets.
pub const GIVEN: &str = "targets.given";

/// The number of concurrent transactions of a process.
const CONCURRENCY: usize = 4;

pub async fn run(post: &Post) -> Result<()> {
    let counter = Counter::open(&post.dir, GIVEN)?;
    let source = QueueSource::new(post, Queue::Commands, counter);
    let pool = wiring::pool(post, CONSUMER_ROLE, CONCURRENCY + 1)?;
    let summary = Consumer::new(pool, source)
        .handle(targets()?.as_str(), handle)
        .concurrency(CONCURRENCY)
        .batches(Batches::new(10).linger(Duration::from_millis(10)))
        .max_deliveries(wiring::MAX_DELIVERIES)
        .back_off(wiring::FIRST_PAUSE, wiring::LONGEST_PAUSE)
        .run(terminated())
        .await?;
    eprintln!("{summary:?}");
    Ok(())
}

async fn handle(tx: Tx, message: Message) -> Handled {
    match message.message_type() {
        Some(name) if name == Kind::FireAt.name() => fire(&tx, &message).await,
        Some(name) if name == Kind::MoveTarget.name() => {
            business::move_target(&*tx, &message.json()?).await?;
            Ok(vec![])
        }
        Some(name)
            if [Poison::AlwaysFails, Poison::Repairable]
                .map(Poison::message_type)
                .contains(&name) =>
        {
            poison::handle(&tx, &message).await
        }
        other => Err(HandlerError::terminal(format!(
            "unknown command: {other:?}"
        ))),
    }
}

async fn fire(tx: &Tx, message: &Message) -> Handled {
    let fact = range::decide(&**tx, message.json()?).await?;
    range::keep_shot(&**tx, &fact).await?;
    Ok(vec![
        Effect::json(FACTS, &fact)?
            .key(fact.target.to_string())
            .message_type(fact.kind().name()),
    ])
}
