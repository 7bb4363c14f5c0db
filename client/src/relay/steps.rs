//! The steps of a partition in the database, each a short transaction on a connection of its own.

use std::{sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use super::{Batch, relay_ack, relay_extend, relay_next, relay_park, runtime::Settings, status::Status};
use crate::{Error, ErrorKind, sql::kept};

/// What a batch is given back with: the shortest lease.
const GIVEN_BACK: Duration = Duration::from_millis(1);

#[derive(Clone)]
pub(super) struct Steps {
    pub(super) pool: Pool,
    pub(super) settings: Arc<Settings>,
    pub(super) status: Status,
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
        self.noted(async { relay_next(&**self.pool.get().await?, name, self.partition, *batch, *lease, *max_bytes).await }.await)
    }

    pub(super) async fn extend(&self, token: i64) -> Result<i64, Error> {
        self.lease_again(token, self.settings.lease).await
    }

    pub(super) async fn give_back(&self, token: i64) -> Result<i64, Error> {
        self.lease_again(token, GIVEN_BACK).await
    }

    async fn lease_again(&self, token: i64, lease: Duration) -> Result<i64, Error> {
        let name = &self.settings.name;
        self.noted(async { relay_extend(&**self.pool.get().await?, name, self.partition, token, lease).await }.await)
    }

    pub(super) async fn ack(&self, token: i64) -> Result<(), Error> {
        let name = &self.settings.name;
        self.noted(async { relay_ack(&**self.pool.get().await?, name, self.partition, token).await }.await)
    }

    pub(super) async fn park(&self, token: i64, message_id: Uuid, reason: &str) -> Result<(), Error> {
        let (name, reason) = (&self.settings.name, kept(reason));
        self.noted(async { relay_park(&**self.pool.get().await?, name, self.partition, token, message_id, &reason).await }.await)
    }

    fn noted<T>(&self, done: Result<T, Error>) -> Result<T, Error> {
        // That a batch is not held, or a lost conflict, is an answer too.
        let answers = match &done {
            Ok(_) => true,
            Err(error) => matches!(error.kind(), ErrorKind::NotClaimed | ErrorKind::Conflict),
        };
        self.status.database(answers);
        done
    }
}

/// Whether no attempt can succeed until somebody has put something right: a relay that does not exist, a missing grant.
pub(super) fn is_final(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Invalid | ErrorKind::NotFound | ErrorKind::NotGranted | ErrorKind::NotInstalled
    ) || error.sqlstate() == Some(&SqlState::INVALID_TRANSACTION_STATE)
}
