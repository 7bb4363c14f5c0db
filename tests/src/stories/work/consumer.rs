//! Handlers that do what the payload of their message says.

use std::{process, sync::Arc, time::Duration};

use anyhow::Result;
use deadpool_postgres::Pool;
use idem_client::{
    Consumer, Destination, Effect, Handled, Message, durable::DurableSource, lease::Work,
    terminated,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use super::{Ears, LEASE, Post, Role, notes};

/// What a payload says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Wish {
    /// So many attempts fail.
    pub fails: i32,
    /// The process ends there and then.
    pub aborts: bool,
    /// The first attempt waits until it is told to go on.
    pub waits: bool,
}

/// The topic of the effect that each handled message has.
pub const HANDLED: &str = "handled";

pub async fn leased(post: &Post, ears: Ears) -> Result<()> {
    let pool = post.pool()?;
    let desk = Desk::new(&pool, ears);
    let handler = |work: Work, message: Message| desk.clone().handle(work, message);
    post.until_done(Role::Leased, &pool, handler, |what| println!("{what}"))
        .await
}

pub async fn durable(post: &Post, ears: Ears) -> Result<()> {
    let pool = post.pool()?;
    let destination = Role::Durable.destination();
    let desk = Desk::new(&pool, ears);
    let source = DurableSource::new(pool.clone(), Destination::new(destination)?)
        .lease(LEASE)
        .batch(post.batch);
    let summary = Consumer::new(pool, source)
        .handle_leased(destination, move |work: Work, message: Message| {
            desk.clone().handle(work, message)
        })
        .concurrency(post.concurrency)
        .grace(Duration::from_secs(60))
        .run(terminated())
        .await?;
    println!("{summary:?}");
    Ok(())
}

/// What the handlers work with.
#[derive(Clone)]
struct Desk {
    pool: Pool,
    ears: Arc<Mutex<Ears>>,
}

impl Desk {
    fn new(pool: &Pool, ears: Ears) -> Self {
        Self {
            pool: pool.clone(),
            ears: Arc::new(Mutex::new(ears)),
        }
    }

    async fn handle(self, work: Work, message: Message) -> Handled {
        let wish: Wish = message.json()?;
        let attempt = work.attempt();
        notes::take(
            &self.pool,
            &work.id().to_string(),
            &format!("attempt {attempt}"),
        )
        .await?;
        if wish.aborts {
            process::abort();
        }
        if wish.waits && attempt == 1 {
            self.ears.lock().await.say_and_wait("working").await?;
        }
        if attempt <= wish.fails {
            return Err("it was to fail".into());
        }
        Ok(vec![Effect::json(HANDLED, &work.id().to_string())?])
    }
}
