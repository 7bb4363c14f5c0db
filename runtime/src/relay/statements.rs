//! The statements of a partition. Each statement is a short transaction on its own connection of
//! the pool.

use std::{sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use idem_client::{
    ErrorKind,
    relay::{self, Batch},
};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::{
    errors::{is_final, is_gone},
    reporter::Reporter,
    settings::Settings,
};
use crate::{
    Error,
    backoff::Pauses,
    connection::{Checkout, on_connection},
};

pub(super) struct RelayStatements {
    pub(super) pool: Pool,
    pub(super) settings: Settings,
    pub(super) reporter: Reporter,
}

impl RelayStatements {
    /// Returns the name of the relay and the number of the partition.
    fn partition(&self) -> (&str, i32) {
        (&self.settings.name, self.reporter.partition)
    }

    pub(super) async fn next(&self) -> Result<Option<Batch>, Error> {
        let (name, partition) = self.partition();
        let (batch, lease, max_bytes) = (
            self.settings.batch,
            self.settings.lease,
            self.settings.max_bytes,
        );
        let next = on_connection(&self.pool, lease, async |client| {
            relay::next(&**client, name, partition, batch, lease, max_bytes).await
        });
        self.reporter.step(next.await)
    }

    /// Lets the lease end after this time from now. Returns the new token.
    pub(super) async fn extend(&self, token: i64, lease: Duration) -> Result<i64, Error> {
        let (name, partition) = self.partition();
        let waits_for = self.reporter.waits_for();
        self.leased(async |client| {
            relay::extend(
                &**client,
                name,
                partition,
                token,
                lease,
                waits_for.as_deref(),
            )
            .await
        })
        .await
    }

    pub(super) async fn ack(&self, token: i64) -> Result<(), Error> {
        let (name, partition) = self.partition();
        self.leased(async |client| relay::ack(&**client, name, partition, token).await)
            .await
    }

    pub(super) async fn park(&self, token: i64, id: Uuid, reason: &str) -> Result<(), Error> {
        let (name, partition) = self.partition();
        self.leased(async |client| relay::park(&**client, name, partition, token, id, reason).await)
            .await
    }

    /// Executes a statement under the lease, and reports its result.
    async fn leased<T, Fut>(&self, statement: impl FnOnce(Arc<Checkout>) -> Fut) -> Result<T, Error>
    where
        Fut: Future<Output = Result<T, idem_client::Error>>,
    {
        let done = on_connection(&self.pool, self.settings.lease, statement).await;
        self.reporter.leased_step(done)
    }
}

/// Retries a statement under a lease while the database is unavailable, until the lease ends.
pub(super) async fn retry_until<T, F: Future<Output = Result<T, Error>>>(
    until: Instant,
    step: impl Fn() -> F,
) -> Result<T, Error> {
    let mut backoff = Pauses::from_millis(50, 1_000).start();
    loop {
        match step().await {
            Err(error)
                if error.kind() != ErrorKind::NotClaimed
                    && !is_final(&error)
                    && !is_gone(&error)
                    && Instant::now() < until =>
            {
                sleep(backoff.next()).await;
            }
            result => return result,
        }
    }
}
