//! Commits the transaction of a consumer.

use tokio_postgres::Transaction;

use crate::Error;

/// Commits a transaction. The error distinguishes a certain rollback from an unknown result.
///
/// Pass the outermost transaction: a nested one is a savepoint, and its commit commits nothing.
///
/// Acknowledge the message only after `Ok`.
///
/// [`Error::AmbiguousCommit`] means that the connection was lost during COMMIT. The message must
/// then be redelivered.
///
/// If a statement of the transaction has failed, PostgreSQL silently executes ROLLBACK in place of
/// COMMIT, and the driver reports success. A handler that ignored the error of that statement would
/// acknowledge a message that was not processed. The same applies to a handler that has executed
/// ROLLBACK itself. So this function sends SAVEPOINT before COMMIT, which costs a round trip and
/// fails with 25P02 or with [`Error::TransactionEnded`] in these cases.
/// [`ClaimedTransaction`](crate::ClaimedTransaction) detects them without that round trip.
pub async fn commit(tx: Transaction<'_>) -> Result<(), Error> {
    let marked = tx.batch_execute("SAVEPOINT idem").await;
    marked.map_err(Error::of_allow)?;
    tx.commit().await.map_err(Error::of_commit)
}
