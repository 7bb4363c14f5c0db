//! A part of a handler's transaction that can be taken back.

use std::ops::Deref;

use tokio_postgres::Client;

use crate::{Error, sent::send_unheard};

/// A savepoint of a [`Tx`](crate::Tx). It derefs to the [`Client`], which takes the statements.
/// Rolls back when dropped.
#[must_use = "dropping it rolls back to where it began"]
pub struct Savepoint<'t> {
    client: &'t Client,
    /// How many savepoints are around this one, itself included: its name is made of it. Were all
    /// of one name, an inner one that the server could not release, or whose beginning was
    /// cancelled, would take what is meant for the outer one.
    depth: u32,
    is_open: bool,
}

impl<'t> Savepoint<'t> {
    pub(crate) async fn begin(client: &'t Client, depth: u32) -> Result<Self, Error> {
        // From here on whatever ends this function early also ends the savepoint.
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

    /// Begins one inside this one.
    pub async fn savepoint(&mut self) -> Result<Savepoint<'_>, Error> {
        Savepoint::begin(self.client, self.depth + 1).await
    }

    /// Keeps what was done since it began, as far as the transaction keeps it.
    pub async fn release(mut self) -> Result<(), Error> {
        self.is_open = false;
        let release = format!("RELEASE SAVEPOINT idem_{}", self.depth);
        Ok(self.client.batch_execute(&release).await?)
    }

    /// Takes back what was done since it began, and waits for it. A statement that failed in it is
    /// forgotten.
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
            send_unheard(self.client, &self.undo());
        }
    }
}
