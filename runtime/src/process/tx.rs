//! The transaction of a handler, on a pooled connection.

use std::{ops::Deref, sync::Arc};

use tokio_postgres::{Client, Statement};

use crate::connection::Checkout;

/// The transaction in which a message is processed.
///
/// Dereferences to the [`Client`], which executes the business statements.
///
/// The caller of the handler begins and ends the transaction. The server rejects a COMMIT of the
/// handler (2D000), and each later statement fails (25P02). A handler that returns the error of its
/// COMMIT has failed with a terminal error. A handler that executes ROLLBACK and returns no error
/// fails with [`TransactionEnded`](idem_client::Error::TransactionEnded). What it executed after
/// the ROLLBACK has taken effect, unless it is in another transaction that is still open. In a
/// batch this includes the statements of the next handler, which are repeated.
///
/// A handler that changes the role or the search_path must use SET LOCAL, and must restore the
/// values that it found before it returns. If the functions of idem cannot be called then, and the
/// handler returns no error, it fails with
/// [`SettingsChanged`](idem_client::Error::SettingsChanged). If they can be called, the change is
/// not noticed: it applies to the next handlers of a batch, and without LOCAL to the next users of
/// the connection. Drop this value before the handler returns.
///
/// A savepoint is a statement. Close it before the handler returns: a later handler of a batch
/// could roll back to it.
///
/// ```
/// # async fn handler(tx: idem_runtime::Tx) -> Result<(), Box<dyn std::error::Error>> {
/// tx.batch_execute("SAVEPOINT player").await?;
/// if tx.execute_typed("INSERT INTO players VALUES (7)", &[]).await.is_err() {
///     tx.batch_execute("ROLLBACK TO SAVEPOINT player").await?; // the row exists already
/// }
/// tx.batch_execute("RELEASE SAVEPOINT player").await?;
/// # Ok(()) }
/// ```
pub struct Tx(Arc<Checkout>);

impl Tx {
    pub(crate) fn on(checkout: &Arc<Checkout>) -> Self {
        Self(Arc::clone(checkout))
    }

    /// Prepares a statement once for each connection of the pool, and returns it.
    ///
    /// A statement that is sent as text is parsed and planned each time, which takes the server
    /// longer than a short statement itself. Do not use prepared statements behind a pooler that
    /// does not keep them: see
    /// [`IdemBuilder::prepared_statements`](crate::process::IdemBuilder::prepared_statements).
    pub async fn prepare_cached(&self, sql: &str) -> Result<Statement, tokio_postgres::Error> {
        self.0.client().prepare_cached(sql).await
    }
}

impl Deref for Tx {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.0.client()
    }
}
