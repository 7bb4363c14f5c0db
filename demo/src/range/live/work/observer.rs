//! Receives and stores every fact. It does not use idem, so that a claim cannot hide a
//! contradiction or a lost fact.

use anyhow::{Context, Result};
use deadpool_postgres::Pool;
use idem_runtime::Message;
use uuid::Uuid;

use super::{
    Post, by_hand,
    note::Counter,
    wiring::{self, QueueSource},
};
use crate::range::{
    live::{
        business::{self, CONSUMER_ROLE},
        place::Queue,
    },
    message::{self, Fact, Kind},
    observer::Published,
};

/// The file that counts the deliveries to the observer.
pub const GIVEN: &str = "observer.given";

pub async fn run(post: &Post) -> Result<()> {
    let counter = Counter::open(&post.dir, GIVEN)?;
    let source = QueueSource::new(post, Queue::Observer, counter);
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
    let message::Message {
        subject,
        kind,
        body,
        ..
    } = Fact::published(id, message.payload().to_vec())?;
    let fact = Published {
        message_id: id,
        hit: kind == Kind::TargetHit,
        payload: body,
    };
    business::hear(&**pool.get().await?, subject, &fact).await
}
