//! The transaction of a handler, on a pooled connection.

use std::{ops::Deref, sync::Arc};

use tokio_postgres::Client;

use super::savepoint::Savepoint;
use crate::{Error, connection::Checkout};

/// The transaction in which a message is processed.
///
/// Dereferences to the [`Client`], which executes the business statements.
///
/// The caller of the handler begins and ends the transaction. The server rejects a COMMIT of the
/// handler (2D000), and each later statement fails (25P02). A handler that returns the error of its
/// COMMIT has failed with a terminal error. A handler that executes ROLLBACK and returns no error
/// fails with [`Error::TransactionEnded`].
///
/// A handler that changes the role or the search_path must use SET LOCAL, and must restore the
/// values that it found before it returns. If the functions of idem cannot be called then, and the
/// handler returns no error, it fails with [`Error::SettingsChanged`]. If they can be called, the
/// change is not noticed: it applies to the next handlers of a batch, and without LOCAL to the next
/// users of the connection. Drop this value before the handler returns, and close each savepoint: a
/// later handler of a batch could roll back to it. [`savepoint`](Self::savepoint) does so.
pub struct Tx(Arc<Checkout>);

impl Tx {
    pub(crate) fn on(checkout: &Arc<Checkout>) -> Self {
        Self(Arc::clone(checkout))
    }

    /// Begins a savepoint.
    ///
    /// A failure inside the savepoint can be rolled back without losing the rest of the
    /// transaction.
    ///
    /// ```
    /// # async fn handler(mut tx: idem_runtime::Tx) -> Result<(), Box<dyn std::error::Error>> {
    /// let savepoint = tx.savepoint().await?;
    /// match savepoint.execute_typed("INSERT INTO players VALUES (7)", &[]).await {
    ///     Ok(_) => savepoint.release().await?,
    ///     // The row exists already.
    ///     Err(_) => savepoint.rollback().await?,
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn savepoint(&mut self) -> Result<Savepoint<'_>, Error> {
        Savepoint::begin(self, 1).await
    }
}

impl Deref for Tx {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.0.client()
    }
}
