//! A savepoint in the transaction of a handler.

use std::ops::Deref;

use idem_client::pipeline::fire_and_forget;
use tokio_postgres::Client;

use crate::Error;

/// A savepoint of a [`Tx`](crate::Tx).
///
/// Dereferences to the [`Client`], which executes the statements. Rolls back when dropped.
#[must_use = "dropping it rolls back to where it began"]
pub struct Savepoint<'t> {
    client: &'t Client,
    /// The number of nested savepoints, including this one. The name contains this number, so that
    /// nested savepoints have different names. With equal names, if the creation of an inner
    /// savepoint was cancelled or its release failed, a statement for one of the two savepoints
    /// would end the other one.
    depth: u32,
    is_open: bool,
}

impl<'t> Savepoint<'t> {
    pub(crate) async fn begin(client: &'t Client, depth: u32) -> Result<Self, Error> {
        // If this future is dropped early, `savepoint` is dropped too, which ends the savepoint at
        // the server.
        let mut savepoint = Self {
            client,
            depth,
            is_open: true,
        };
        if let Err(error) = client
            .batch_execute(&format!("SAVEPOINT idem_{depth}"))
            .await
        {
            savepoint.is_open = false;
            return Err(error.into());
        }
        Ok(savepoint)
    }

    /// Begins a savepoint inside this one.
    pub async fn savepoint(&mut self) -> Result<Savepoint<'_>, Error> {
        Savepoint::begin(self.client, self.depth + 1).await
    }

    /// Releases the savepoint and keeps the changes that were made since it began, if the
    /// transaction commits.
    pub async fn release(mut self) -> Result<(), Error> {
        self.is_open = false;
        let release = format!("RELEASE SAVEPOINT idem_{}", self.depth);
        Ok(self.client.batch_execute(&release).await?)
    }

    /// Rolls back the changes that were made since the savepoint began, and waits for the reply.
    ///
    /// The transaction is usable again if a statement in the savepoint has failed.
    pub async fn rollback(mut self) -> Result<(), Error> {
        self.is_open = false;
        Ok(self.client.batch_execute(&self.undo()).await?)
    }

    fn undo(&self) -> String {
        let depth = self.depth;
        format!("ROLLBACK TO SAVEPOINT idem_{depth}; RELEASE SAVEPOINT idem_{depth}")
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
            fire_and_forget(self.client, &self.undo());
        }
    }
}
