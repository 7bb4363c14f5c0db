//! The end of a consumer's transaction.

use tokio_postgres::Transaction;

use crate::Error;

/// Commits, and tells a certain failure from an open one: only after `Ok` may the message be
/// acknowledged.
///
/// [`Error::AmbiguousCommit`] means that the connection was lost on the way: the message must come
/// again.
///
/// PostgreSQL answers COMMIT of a transaction in which a statement has failed with a silent
/// ROLLBACK, and the driver passes that on as success. A handler that dropped such an error would
/// acknowledge a message that was not processed, so this asks first, which is a round trip: the
/// answer is 25P02 then. [`ClaimedTransaction`](crate::ClaimedTransaction) notices without it.
pub async fn commit(tx: Transaction<'_>) -> Result<(), Error> {
    tx.batch_execute("SELECT 1").await?;
    tx.commit().await.map_err(Error::of_commit)
}
