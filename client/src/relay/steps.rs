//! The steps of a partition in the database, each a short transaction on a connection of its own.

use std::{sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use super::{
    Batch, notes::Notes, relay_ack, relay_extend, relay_next, relay_park, runtime::Settings,
};
use crate::{
    Error, ErrorKind,
    connection::{Loan, within},
    sql::kept,
};

/// What a batch is given back with: the shortest lease.
const GIVEN_BACK: Duration = Duration::from_millis(1);

#[derive(Clone)]
pub(super) struct Steps {
    pub(super) pool: Pool,
    pub(super) settings: Arc<Settings>,
    pub(super) notes: Notes,
    pub(super) partition: i32,
}

impl Steps {
    pub(super) async fn next(&self) -> Result<Option<Batch>, Error> {
        let Settings {
            name,
            batch,
            lease,
            max_bytes,
            ..
        } = &*self.settings;
        let notes = &self.notes;
        notes.step(
            async {
                let loan = Loan::take(&self.pool).await?;
                let next = relay_next(
                    &**loan.client(),
                    name,
                    self.partition,
                    *batch,
                    *lease,
                    *max_bytes,
                );
                let answer = within(*lease, next).await;
                loan.end(answer)
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
        let notes = &self.notes;
        notes.leased_step(
            async {
                let loan = Loan::take(&self.pool).await?;
                let extended = relay_extend(&**loan.client(), name, self.partition, token, lease);
                let answer = within(self.settings.lease, extended).await;
                loan.end(answer)
            }
            .await,
        )
    }

    pub(super) async fn ack(&self, token: i64) -> Result<(), Error> {
        let name = &self.settings.name;
        let notes = &self.notes;
        notes.leased_step(
            async {
                let loan = Loan::take(&self.pool).await?;
                let acknowledged = relay_ack(&**loan.client(), name, self.partition, token);
                let answer = within(self.settings.lease, acknowledged).await;
                loan.end(answer)
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
        let (name, reason) = (&self.settings.name, kept(reason));
        let notes = &self.notes;
        notes.leased_step(
            async {
                let loan = Loan::take(&self.pool).await?;
                let parked = relay_park(
                    &**loan.client(),
                    name,
                    self.partition,
                    token,
                    message_id,
                    &reason,
                );
                let answer = within(self.settings.lease, parked).await;
                loan.end(answer)
            }
            .await,
        )
    }
}

/// Whether waiting cannot help: a setting is out of its range, or sessions are not READ COMMITTED.
/// Whatever else the database lacks, an administrator can add while relays wait.
pub(super) fn is_final(error: &Error) -> bool {
    error.kind() == ErrorKind::Invalid
        || error.sqlstate() == Some(&SqlState::INVALID_TRANSACTION_STATE)
}

/// Whether a transaction failed because of a concurrent one (40001, 40P01). The database serves, so
/// the step is repeated and no trouble is reported. 55P03 is not among them: it means that a table
/// stayed locked beyond `lock_timeout`, and then the database does not serve the relay.
pub(super) fn is_lost_conflict(error: &Error) -> bool {
    let lost = [
        &SqlState::T_R_SERIALIZATION_FAILURE,
        &SqlState::T_R_DEADLOCK_DETECTED,
    ];
    error.sqlstate().is_some_and(|state| lost.contains(&state))
}

/// Whether the relay does not exist. Another one of its name may have other partitions.
pub(super) fn is_gone(error: &Error) -> bool {
    error.kind() == ErrorKind::NotFound
}

/// Adds an error to the one that ends a relay. That the relay is gone matters least.
pub(super) fn worse(known: Option<Error>, other: Error) -> Option<Error> {
    known.filter(|known| !is_gone(known)).or(Some(other))
}
