//! The end of a consumer's transaction.

use tokio_postgres::Transaction;

use crate::Error;

/// Commits, and tells a certain failure from an open one: only after `Ok` may the message be acknowledged.
///
/// [`Error::AmbiguousCommit`] means that the connection was lost on the way: the message must come again.
///
/// PostgreSQL answers COMMIT of a transaction in which a statement has failed with a silent ROLLBACK, and the driver
/// passes that on as success. So let errors of statements out (`?`), and never go on to here after one.
/// [`ClaimedTransaction`](crate::ClaimedTransaction) notices by itself.
pub async fn commit(tx: Transaction<'_>) -> Result<(), Error> {
    tx.commit().await.map_err(Error::of_commit)
}
