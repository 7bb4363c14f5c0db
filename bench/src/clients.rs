//! Clients in a closed loop: each client runs one transaction after the other, on the connections
//! of a pool.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use deadpool_postgres::{Hook, HookError, Manager, ManagerConfig, Pool, RecyclingMethod};
use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};
use tokio::task::JoinSet;
use tokio_postgres::NoTls;

use super::server::ACCOUNTS;
use crate::search_path;

/// A load: the number of clients, and the time for which they run.
#[derive(Clone, Copy, Debug)]
pub struct Clients {
    pub count: usize,
    pub time: Duration,
}

/// The messages that all clients of a load processed, and the time until the last client ended.
#[derive(Clone, Copy, Debug)]
pub struct Completed {
    pub messages: u64,
    pub seconds: f64,
}

impl Completed {
    /// Returns messages per second of all clients together.
    pub fn rate(&self) -> f64 {
        self.messages as f64 / self.seconds
    }
}

impl Clients {
    /// Runs the load. `process` processes one message with the account of its business update.
    pub async fn run<F, Fut>(self, pool: &Pool, process: F) -> Result<Completed>
    where
        F: Fn(Pool, i32) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = Result<()>> + Send,
    {
        static SEED: AtomicU64 = AtomicU64::new(0);
        let start = Instant::now();
        let end = start + self.time;
        let mut tasks = JoinSet::new();
        for _ in 0..self.count {
            let (pool, process) = (pool.clone(), process.clone());
            let mut dice = SmallRng::seed_from_u64(SEED.fetch_add(1, Ordering::Relaxed));
            tasks.spawn(async move {
                let mut messages = 0_u64;
                while Instant::now() < end {
                    let account = dice.random_range(0..ACCOUNTS.cast_signed());
                    process(pool.clone(), account).await?;
                    messages += 1;
                }
                anyhow::Ok(messages)
            });
        }
        let mut messages = 0;
        while let Some(done) = tasks.join_next().await {
            messages += done??;
        }
        Ok(Completed {
            messages,
            seconds: start.elapsed().as_secs_f64(),
        })
    }
}

/// Opens a pool with `connections` connections to a database with the business table in `schema`,
/// which is the first one in the search path. All connections are open when this function returns,
/// so that no measurement contains a connect.
pub async fn open_pool(
    config: tokio_postgres::Config,
    connections: usize,
    schema: &'static str,
) -> Result<Pool> {
    let manager = Manager::from_config(
        config,
        NoTls,
        ManagerConfig {
            recycling_method: RecyclingMethod::Fast,
        },
    );
    let pool = Pool::builder(manager)
        .max_size(connections)
        .post_create(Hook::async_fn(move |client, _| {
            Box::pin(async move {
                let put = search_path::put_first(client, schema).await;
                put.map_err(HookError::Backend)
            })
        }))
        .build()?;
    let mut open = Vec::new();
    for _ in 0..connections {
        open.push(pool.get().await?);
    }
    drop(open);
    Ok(pool)
}
