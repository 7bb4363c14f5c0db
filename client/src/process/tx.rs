//! The transaction as a handler sees it: a pooled connection on loan.

use std::{ops::Deref, sync::Arc};

use deadpool_postgres::{ClientWrapper, Object};
use tokio_postgres::Client;

use crate::{Error, process::savepoint::Savepoint};

/// The transaction that a message is processed in. It derefs to the [`Client`], which takes the business statements.
///
/// It is begun and ended by whoever lends it. Drop it before the handler answers.
pub struct Tx(Arc<Loan>);

impl Tx {
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

/// A connection with a transaction open on it. Unless it is [given back](Loan::give_back), it is closed and not returned
/// to its pool: nobody shall find a transaction, or an unanswered statement, of somebody else.
pub(crate) struct Loan {
    object: Option<Object>,
}

impl Loan {
    pub(crate) fn new(object: Object) -> Arc<Self> {
        Arc::new(Self { object: Some(object) })
    }

    pub(crate) fn lend(self: &Arc<Self>) -> Tx {
        Tx(Arc::clone(self))
    }

    pub(crate) fn client(&self) -> &ClientWrapper {
        match &self.object {
            Some(object) => object,
            // `object` leaves in `give_back` and `drop` only, which take the last handle.
            None => unreachable!("a loan has its connection as long as somebody holds it"),
        }
    }

    /// Whether a handler has kept its [`Tx`].
    pub(crate) fn is_kept(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > 1
    }

    /// Returns the connection to its pool. Its transaction has ended, or the statement that ends it is on its way.
    pub(crate) fn give_back(self: Arc<Self>) {
        if let Some(mut loan) = Arc::into_inner(self) {
            drop(loan.object.take());
        }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let Some(object) = self.object.take() {
            // Out of the pool and closed: the server rolls back.
            drop(Object::take(object));
        }
    }
}
