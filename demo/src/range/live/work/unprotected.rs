//! Handles the commands without idem, as carefully as is possible without it: the business writes
//! are one transaction, the fact is published after the commit, and the message is acknowledged
//! last. So no message is lost, and every message can take effect twice.

use std::sync::Arc;

use anyhow::{Result, bail};
use deadpool_postgres::Pool;
use idem_runtime::{Message, OutgoingMessage, Publisher};
use uuid::Uuid;

use super::{
    by_hand,
    wiring::{self, BrokerPublisher, QueueSource},
};
use crate::range::{
    business as range,
    live::{
        business::{self, CONSUMER_ROLE},
        place::{FACTS, Queue},
        post::Post,
    },
    message::{Fact, Kind},
};

pub async fn run(post: &Post) -> Result<()> {
    let source = QueueSource::new(post, Queue::Commands)?;
    let publisher = Arc::new(BrokerPublisher::new(post.broker, &post.broker_url));
    let pool = wiring::pool(post, CONSUMER_ROLE, by_hand::AT_A_TIME)?;
    by_hand::consume(source, move |message| {
        let (pool, publisher) = (pool.clone(), Arc::clone(&publisher));
        async move {
            if let Some(fact) = handle(&pool, &message).await? {
                publish(&*publisher, &fact).await?;
            }
            Ok(())
        }
    })
    .await
}

async fn handle(pool: &Pool, message: &Message) -> Result<Option<Fact>> {
    let mut client = pool.get().await?;
    let tx = client.transaction().await?;
    let fact = match message.message_type() {
        Some(name) if name == Kind::FireAt.name() => {
            let fact = range::decide(&*tx, message.json()?).await?;
            range::keep_shot(&*tx, &fact).await?;
            Some(fact)
        }
        Some(name) if name == Kind::MoveTarget.name() => {
            business::move_target(&*tx, &message.json()?).await?;
            None
        }
        other => bail!("unknown command: {other:?}"),
    };
    tx.commit().await?;
    Ok(fact)
}

async fn publish(publisher: &impl Publisher, fact: &Fact) -> Result<()> {
    let mut message = OutgoingMessage::new(Uuid::new_v4(), FACTS, serde_json::to_vec(fact)?);
    message.message_type = Some(fact.kind().name().to_owned());
    Ok(publisher.publish(&message).await?)
}
