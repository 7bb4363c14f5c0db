//! Handlers that behave as the payload of the message requests.

use std::{process, sync::Arc, time::Duration};

use anyhow::Result;
use deadpool_postgres::Pool;
use idem_client::{Destination, Effect};
use idem_runtime::{
    Consumer, Handled, Message, inbox::DurableSource, lease::LeaseContext, terminated,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use super::{
    control::Control,
    notes,
    post::{LEASE, Post, Role},
};

/// The payload of a message. It determines the behaviour of the handler.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Wish {
    /// The number of attempts that fail.
    pub fails: i32,
    /// Whether the handler aborts the process.
    pub aborts: bool,
    /// Whether the first attempt waits for a line on the standard input of the process.
    pub waits: bool,
}

/// The topic of the effect of each handled message.
pub const HANDLED: &str = "handled";

pub async fn leased(post: &Post, control: Control) -> Result<()> {
    let pool = post.pool()?;
    let context = HandlerContext::new(&pool, control);
    let handler = |work: LeaseContext, message: Message| context.clone().handle(work, message);
    post.until_done(Role::Leased, &pool, handler, |what| println!("{what}"))
        .await
}

pub async fn durable(post: &Post, control: Control) -> Result<()> {
    let pool = post.pool()?;
    let destination = Role::Durable.destination();
    let context = HandlerContext::new(&pool, control);
    let source = DurableSource::new(pool.clone(), Destination::new(destination)?)
        .lease(LEASE)
        .batch(post.batch);
    let summary = Consumer::new(pool, source)
        .handle_leased(destination, move |work: LeaseContext, message: Message| {
            context.clone().handle(work, message)
        })
        .concurrency(post.concurrency)
        .grace(Duration::from_secs(60))
        .run(terminated())
        .await?;
    println!("{summary:?}");
    Ok(())
}

/// The context of the handlers.
#[derive(Clone)]
struct HandlerContext {
    pool: Pool,
    control: Arc<Mutex<Control>>,
}

impl HandlerContext {
    fn new(pool: &Pool, control: Control) -> Self {
        Self {
            pool: pool.clone(),
            control: Arc::new(Mutex::new(control)),
        }
    }

    async fn handle(self, work: LeaseContext, message: Message) -> Handled {
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
            self.control.lock().await.report_and_wait("working").await?;
        }
        if attempt <= wish.fails {
            return Err("this attempt fails as requested".into());
        }
        Ok(vec![Effect::json(HANDLED, &work.id().to_string())?])
    }
}
