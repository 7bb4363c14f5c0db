//! Receives and stores every fact. It does not use idem, so that a claim cannot hide a
//! contradiction or a lost fact.

use anyhow::{Context, Result};
use deadpool_postgres::Pool;
use idem_runtime::Message;
use uuid::Uuid;

use super::{
    by_hand,
    wiring::{self, QueueSource},
};
use crate::range::{
    live::{
        business::{self, CONSUMER_ROLE},
        place::Queue,
        post::Post,
    },
    message::Fact,
    observer::Published,
};

pub async fn run(post: &Post) -> Result<()> {
    let source = QueueSource::new(post, Queue::Observer)?;
    let pool = wiring::pool(post, CONSUMER_ROLE, by_hand::AT_A_TIME)?;
    by_hand::consume(source, move |message| {
        let pool = pool.clone();
        async move { hear(&pool, &message).await }
    })
    .await
}

async fn hear(pool: &Pool, message: &Message) -> Result<()> {
    let id: Uuid = message
        .message_id()
        .context("a fact has no message id")?
        .parse()?;
    let fact = Fact::published(id, message.payload().to_vec())?;
    business::hear(
        &**pool.get().await?,
        fact.subject,
        &Published::of(fact.clone()),
    )
    .await
}
