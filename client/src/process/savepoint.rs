//! A part of a handler's transaction that can be taken back.

use std::ops::Deref;

use tokio_postgres::Client;

use crate::{Error, sent::send_unheard};

/// Nested savepoints share a name: the server takes the innermost, and the borrow checker lets nobody reach another one.
const UNDO: &str = "ROLLBACK TO SAVEPOINT idem; RELEASE SAVEPOINT idem";

/// A savepoint of a [`Tx`](crate::Tx). It derefs to the [`Client`], which takes the statements. Rolls back when dropped.
#[must_use = "dropping it rolls back to where it began"]
pub struct Savepoint<'t> {
    client: &'t Client,
    is_open: bool,
}

impl<'t> Savepoint<'t> {
    pub(crate) async fn begin(client: &'t Client) -> Result<Self, Error> {
        // From here on whatever ends this function early also ends the savepoint: it must not take what is meant for an outer one.
        let mut savepoint = Self { client, is_open: true };
        if let Err(error) = client.batch_execute("SAVEPOINT idem").await {
            savepoint.is_open = false;
            return Err(error.into());
        }
        Ok(savepoint)
    }

    /// Begins one inside this one.
    pub async fn savepoint(&mut self) -> Result<Savepoint<'_>, Error> {
        Savepoint::begin(self.client).await
    }

    /// Keeps what was done since it began, as far as the transaction keeps it.
    pub async fn release(mut self) -> Result<(), Error> {
        self.is_open = false;
        Ok(self.client.batch_execute("RELEASE SAVEPOINT idem").await?)
    }

    /// Takes back what was done since it began, and waits for it. A statement that failed in it is forgotten.
    pub async fn rollback(mut self) -> Result<(), Error> {
        self.is_open = false;
        Ok(self.client.batch_execute(UNDO).await?)
    }
}

impl Deref for Savepoint<'_> {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.client
    }
}

impl Drop for Savepoint<'_> {
    fn drop(&mut self) {
        if self.is_open {
            send_unheard(self.client, UNDO);
        }
    }
}
