//! The statements of a partition. Each statement is a short transaction on its own connection of
//! the pool.

use std::{sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use idem_client::relay::{self, Batch};
use idem_client::{ErrorKind, sql::truncated_reason};
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use super::{reporter::Reporter, runtime::Settings};
use crate::{
    Error,
    connection::{Checkout, within},
};

/// The shortest lease. Extending a lease to this time from now releases the batch.
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
        reporter.leased_step(
            async {
                let checkout = Checkout::take(&self.pool).await?;
                let extended =
                    relay::extend(&**checkout.client(), name, self.partition, token, lease);
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
        let (name, reason) = (&self.settings.name, truncated_reason(reason));
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

/// Returns whether an error is permanent: a setting is out of range, or sessions are not READ
/// COMMITTED. All other errors can end while relays wait, because an administrator can add what the
/// database lacks.
pub(super) fn is_final(error: &Error) -> bool {
    error.kind() == ErrorKind::Invalid
        || error.sqlstate() == Some(&SqlState::INVALID_TRANSACTION_STATE)
}

/// Returns whether a transaction failed because of a concurrent transaction (40001, 40P01). The
/// database is available, so the statement is retried and no failure is reported. 55P03 is
/// different: a table was locked for longer than `lock_timeout`, so the database is not available
/// to the relay.
pub(super) fn is_lost_conflict(error: &Error) -> bool {
    let lost = [
        &SqlState::T_R_SERIALIZATION_FAILURE,
        &SqlState::T_R_DEADLOCK_DETECTED,
    ];
    error.sqlstate().is_some_and(|state| lost.contains(&state))
}

/// Returns whether the relay does not exist. A new relay of the same name may have a different
/// number of partitions.
pub(super) fn is_gone(error: &Error) -> bool {
    error.kind() == ErrorKind::NotFound
}

/// Returns the more important one of two errors that end a relay. "The relay does not exist" is the
/// least important error.
pub(super) fn worse(known: Option<Error>, other: Error) -> Option<Error> {
    known.filter(|known| !is_gone(known)).or(Some(other))
}
