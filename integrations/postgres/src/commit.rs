//! Commits the transaction of a consumer.

use idem_client::Error;
use postgres::Transaction;

/// Commits a transaction. The error distinguishes a certain rollback from an unknown result.
///
/// Pass the outermost transaction: a nested one is a savepoint, and its commit commits nothing.
///
/// Acknowledge the message only after `Ok`. [`Error::AmbiguousCommit`] means that the connection
/// was lost during COMMIT. The message must then be redelivered.
///
/// Sends SAVEPOINT before COMMIT. Fails with 25P02 if a statement of the transaction has failed,
/// and with [`Error::TransactionEnded`] if the handler has ended the transaction itself. In both
/// cases the server would execute no COMMIT, and the driver would report success.
pub fn commit(mut tx: Transaction<'_>) -> Result<(), Error> {
    let marked = tx.batch_execute("SAVEPOINT idem");
    marked.map_err(Error::of_allow)?;
    tx.commit().map_err(Error::of_commit)
}
