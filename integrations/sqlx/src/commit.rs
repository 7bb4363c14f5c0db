//! Commits the transaction of a consumer.

use idem_client::Error;
use sqlx::{Executor as _, Postgres, Transaction};

use crate::error::{driver_error, translated};

const NO_ACTIVE_TRANSACTION: &str = "25P01";

/// Commits a transaction. The error distinguishes a certain rollback from an unknown result.
///
/// Pass the outermost transaction: a nested one is a savepoint, and its commit commits nothing.
///
/// Acknowledge the message only after `Ok`. With the kind
/// [`AmbiguousCommit`](idem_client::ErrorKind::AmbiguousCommit), the connection was lost during
/// COMMIT, and the message must be redelivered.
///
/// If a statement of the transaction has failed, PostgreSQL silently executes ROLLBACK in place of
/// COMMIT, and sqlx reports success. A handler that ignored the error of that statement would
/// acknowledge a message that was not processed. So this function executes SAVEPOINT before COMMIT,
/// which costs a round trip. It fails with 25P02 after a failed statement, and with
/// [`Error::TransactionEnded`] if the handler has ended the transaction itself.
pub async fn commit(mut tx: Transaction<'_, Postgres>) -> Result<(), Error> {
    let marked = tx.execute(sqlx::raw_sql("SAVEPOINT idem")).await;
    marked.map_err(|error| {
        let error = translated(error);
        match error.sqlstate().map(|state| state.code()) {
            Some(NO_ACTIVE_TRANSACTION) => Error::TransactionEnded,
            _ => error,
        }
    })?;
    let committed = tx.commit().await;
    committed.map_err(|error| driver_error(error).of_commit().into())
}
