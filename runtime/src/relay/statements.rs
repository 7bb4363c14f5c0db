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
    connection::{Checkout, within},
};

/// The shortest lease that the server accepts. To release a batch, the end of its lease is set to
/// this time from now.
const GIVEN_BACK: Duration = Duration::from_millis(1);

#[derive(Clone)]
pub(super) struct RelayStatements {
    pub(super) pool: Pool,
    pub(super) settings: Arc<Settings>,
    pub(super) reporter: Reporter,
    pub(super) partition: i32,
}

impl RelayStatements {
    pub(super) async fn next(&self) -> Result<Option<Batch>, Error> {
        let Settings {
            name,
            batch,
            lease,
            max_bytes,
            ..
        } = &*self.settings;
        let reporter = &self.reporter;
        reporter.step(
            async {
                let checkout = Checkout::take(&self.pool).await?;
                let next = relay::next(
                    &**checkout.client(),
                    name,
                    self.partition,
                    *batch,
                    *lease,
                    *max_bytes,
                );
                let result = within(*lease, next).await;
                checkout.end(result)
            }
            .await,
        )
    }

    pub(super) async fn extend(&self, token: i64) -> Result<i64, Error> {
        self.lease_again(token, self.settings.lease).await
    }

    pub(super) async fn give_back(&self, token: i64) -> Result<i64, Error> {
        self.lease_again(token, GIVEN_BACK).await
    }

    async fn lease_again(&self, token: i64, lease: Duration) -> Result<i64, Error> {
        let name = &self.settings.name;
        let reporter = &self.reporter;
        let waits_for = reporter.waits_for();
        let waits_for = waits_for.as_deref().map(without_zero_bytes);
        reporter.leased_step(
            async {
                let checkout = Checkout::take(&self.pool).await?;
                let extended = relay::extend(
                    &**checkout.client(),
                    name,
                    self.partition,
                    token,
                    lease,
                    waits_for.as_deref(),
                );
                let result = within(self.settings.lease, extended).await;
                checkout.end(result)
            }
            .await,
        )
    }

    pub(super) async fn ack(&self, token: i64) -> Result<(), Error> {
        let name = &self.settings.name;
        let reporter = &self.reporter;
        reporter.leased_step(
            async {
                let checkout = Checkout::take(&self.pool).await?;
                let acknowledged = relay::ack(&**checkout.client(), name, self.partition, token);
                let result = within(self.settings.lease, acknowledged).await;
                checkout.end(result)
            }
            .await,
        )
    }

    pub(super) async fn park(
        &self,
        token: i64,
        message_id: Uuid,
        reason: &str,
    ) -> Result<(), Error> {
        let (name, reason) = (&self.settings.name, without_zero_bytes(reason));
        let reporter = &self.reporter;
        reporter.leased_step(
            async {
                let checkout = Checkout::take(&self.pool).await?;
                let parked = relay::park(
                    &**checkout.client(),
                    name,
                    self.partition,
                    token,
                    message_id,
                    &reason,
                );
                let result = within(self.settings.lease, parked).await;
                checkout.end(result)
            }
            .await,
        )
    }
}
