//! Hands effects over to the durable inboxes of the same database.

use std::{future::Future, sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use idem_client::relay;
use tokio::sync::watch;

use super::{
    errors::{is_final, is_gone},
    reporter::Reporter,
    serving::{PartitionTask, Serving},
    settings::{AWAY, RECOUNT, defaults},
};
use crate::{Error, connection::Checkout};

/// Hands effects over to the durable inboxes of the same database. Each destination receives the
/// effects of the topic with the same name, and receives effects of one key in their order. No
/// broker and no handler takes part: see [`DurableSource`](crate::inbox::DurableSource).
///
/// An effect is received and acknowledged in one transaction, and the inbox identifies it by its
/// message id. So each effect is received exactly once, even if several processes hand over
/// effects. Create a separate relay for the hand-over (`idem_create_relay`): the hand-over skips
/// effects of other topics, and other relays publish them.
///
/// ```no_run
/// # async fn run(pool: deadpool_postgres::Pool) -> Result<(), idem_runtime::Error> {
/// use idem_runtime::{relay::HandOver, terminated};
///
/// let passed = HandOver::new(pool, "inboxes", ["orders.bill", "orders.remind"])
///     .run(terminated())
///     .await?;
/// println!("{passed} effects");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is handed over before `run`"]
pub struct HandOver {
    pool: Pool,
    relay: String,
    topics: Vec<String>,
    batch: i32,
    max_bytes: i64,
    grace: Duration,
}

impl HandOver {
    /// Creates a hand-over of the effects of these topics with this relay.
    pub fn new(
        pool: Pool,
        relay: impl Into<String>,
        topics: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        let hand_over = Self {
            pool,
            relay: relay.into(),
            topics: topics.into_iter().map(Into::into).collect(),
            batch: 1000,
            max_bytes: 0,
            grace: Duration::from_secs(5),
        };
        hand_over.max_bytes(defaults::MAX_BYTES)
    }

    /// Sets the number of effects that share a transaction; 1,000 by default.
    pub fn batch(mut self, effects: u32) -> Self {
        self.batch = i32::try_from(effects).unwrap_or(i32::MAX);
        self
    }

    /// Sets the number of bytes of payloads and headers in a transaction, at most 1 GB; 16 MiB by
    /// default. The first effect is handed over whatever its size.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self
    }

    /// Hands over effects until `shutdown` completes. Returns the number of effects that were
    /// handed over or skipped.
    ///
    /// Failures of the environment are retried: the database is unavailable, the relay does not
    /// exist, the role lacks its grant, or the extension is not installed. Errors are returned when
    /// waiting cannot help: a setting is out of range, or sessions are not READ COMMITTED. Dropping
    /// the future stops at once and loses nothing.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<u64, Error> {
        let shared = Arc::new(self);
        let reporter = Reporter::new(&shared.relay, watch::Sender::default());
        let serving = Serving {
            pool: &shared.pool,
            reporter: &reporter,
            recount: RECOUNT,
            grace: shared.grace,
        };
        serving
            .run(shutdown, |task| Arc::clone(&shared).work(task))
            .await?;
        Ok(reporter.status.borrow().published)
    }

    async fn work(self: Arc<Self>, mut task: PartitionTask) -> Result<(), Error> {
        let mut away = AWAY.start();
        let reporter = task.reporter.clone();
        while !task.stop.is_cancelled() {
            let Some(handed_over) = task.look(self.hand_over(reporter.partition)).await else {
                return Ok(());
            };
            match reporter.step(handed_over) {
                Ok(0) => {
                    away.reset();
                    task.wait_for_commit().await;
                }
                Ok(count) => {
                    let count = u64::try_from(count).unwrap_or(0);
                    reporter
                        .status
                        .send_modify(|status| status.published += count);
                    away.reset();
                    task.idle.reset();
                }
                Err(error) if is_final(&error) || is_gone(&error) => return Err(error),
                Err(_) => task.rest(away.next()).await,
            }
        }
        Ok(())
    }

    /// Hands over one batch. When the future is dropped, its connection is closed. The server then
    /// rolls the transaction back, unless it has already committed.
    async fn hand_over(&self, partition: i32) -> Result<i32, Error> {
        let checkout = Checkout::take(&self.pool).await?;
        // There is no time limit: the statement may wait for the transactions of claimers, which
        // take as long as their handlers.
        let count = relay::hand_over(
            &**checkout.client(),
            &self.relay,
            &self.topics,
            partition,
            self.batch,
            self.max_bytes,
        )
        .await;
        checkout.end(count)
    }
}
