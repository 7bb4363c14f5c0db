//! The transaction as a handler sees it: a pooled connection on loan.

use std::{ops::Deref, sync::Arc};

use tokio_postgres::Client;

use crate::{Error, connection::Loan, process::savepoint::Savepoint};

/// The transaction that a message is processed in. It derefs to the [`Client`], which takes the
/// business statements.
///
/// It is begun and ended by whoever lends it. Drop it before the handler answers.
pub struct Tx(Arc<Loan>);

impl Tx {
    pub(crate) fn on(loan: &Arc<Loan>) -> Self {
        Self(Arc::clone(loan))
    }

    /// Begins a savepoint: what fails in it can be taken back without losing the rest.
    ///
    /// ```
    /// # async fn handler(mut tx: idem_client::Tx) -> Result<(), Box<dyn std::error::Error>> {
    /// let savepoint = tx.savepoint().await?;
    /// match savepoint.execute_typed("INSERT INTO players VALUES (7)", &[]).await {
    ///     Ok(_) => savepoint.release().await?,
    ///     // Known already.
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
