//! The statements of a partition. Each statement is a short transaction on its own connection of
//! the pool.

use std::{sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use idem_client::relay::{self, Batch};
use idem_client::sql::without_zero_bytes;
use uuid::Uuid;

use super::{reporter::Reporter, settings::Settings};
use crate::{
    Error,
    connection::{Checkout, on_connection},
};

/// The shortest lease that the server accepts. To release a batch, the end of its lease is set to
/// this time from now.
const GIVEN_BACK: Duration = Duration::from_millis(1);

pub(super) struct RelayStatements {
    pub(super) pool: Pool,
    pub(super) settings: Settings,
    pub(super) reporter: Reporter,
}

impl RelayStatements {
    pub(super) async fn next(&self) -> Result<Option<Batch>, Error> {
        let Settings {
            name,
            batch,
            lease,
            max_bytes,
            ..
        } = &self.settings;
        let next = on_connection(&self.pool, *lease, async |client| {
            relay::next(
                &**client,
                name,
                self.reporter.partition,
                *batch,
                *lease,
                *max_bytes,
            )
            .await
        });
        self.reporter.step(next.await)
    }

    pub(super) async fn extend(&self, token: i64) -> Result<i64, Error> {
        self.lease_again(token, self.settings.lease).await
    }

    pub(super) async fn give_back(&self, token: i64) -> Result<i64, Error> {
        self.lease_again(token, GIVEN_BACK).await
    }

    async fn lease_again(&self, token: i64, lease: Duration) -> Result<i64, Error> {
        let waits_for = self.reporter.waits_for();
        let waits_for = waits_for.as_deref().map(without_zero_bytes);
        let (name, waits_for) = (&self.settings.name, waits_for.as_deref());
        self.leased(async |client| {
            relay::extend(
                &**client,
                name,
                self.reporter.partition,
                token,
                lease,
                waits_for,
            )
            .await
        })
        .await
    }

    pub(super) async fn ack(&self, token: i64) -> Result<(), Error> {
        self.leased(async |client| {
            relay::ack(
                &**client,
                &self.settings.name,
                self.reporter.partition,
                token,
            )
            .await
        })
        .await
    }

    pub(super) async fn park(
        &self,
        token: i64,
        message_id: Uuid,
        reason: &str,
    ) -> Result<(), Error> {
        let (name, reason) = (&self.settings.name, without_zero_bytes(reason));
        self.leased(async |client| {
            relay::park(
                &**client,
                name,
                self.reporter.partition,
                token,
                message_id,
                &reason,
            )
            .await
        })
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
