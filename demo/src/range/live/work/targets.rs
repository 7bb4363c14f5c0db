//! Handles the commands. A shot is decided by the position that its target has *now*, and the
//! result is recorded as an effect.

use anyhow::Result;
use idem_client::Effect;
use idem_runtime::{Handled, HandlerError, Message, Tx, terminated};

use super::wiring;
use crate::range::{
    business as range,
    live::{
        business,
        place::{FACTS, Queue},
        poison::{self, Poison},
        post::{Post, TARGETS},
    },
    message::Kind,
};

pub async fn run(post: &Post) -> Result<()> {
    let consumer = wiring::batching(post, Queue::Commands)?;
    let summary = consumer.handle(TARGETS, handle).run(terminated()).await?;
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
