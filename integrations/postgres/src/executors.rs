//! Connections and transactions of `postgres` that execute the functions of the client.

use std::ops::DerefMut;
use std::sync::{Mutex, TryLockError};

use idem_client::tokio_postgres::types::{ToSql, Type};
use idem_client::{DriverError, Error, ErrorKind, Executor, OpenTransaction, Row};
use postgres::{Client, Transaction};

/// Locks a connection. Fails if it is borrowed, because a wait for the same thread would not end.
fn lock<T>(mutex: &Mutex<T>) -> Result<impl DerefMut<Target = T>, Error> {
    match mutex.try_lock() {
        Ok(connection) => Ok(connection),
        // A panic in a statement of the application has not changed what the lock protects.
        Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => {
            let text = "the connection is in use: drop the borrowed value before this call";
            Err(DriverError::of_driver(ErrorKind::Other, text).into())
        }
    }
}

/// Implements [`Executor`] for a mutex around a connection or a transaction of the driver.
macro_rules! executor {
    ($type:ty) => {
        impl Executor for $type {
            async fn fetch_all(
                &self,
                sql: &str,
                parameters: &[(&(dyn ToSql + Sync), Type)],
            ) -> Result<Vec<Row>, Error> {
                let rows = lock(&self.0)?.query_typed(sql, parameters)?;
                Ok(rows.into_iter().map(Row::from).collect())
            }
        }
    };
}

/// A connection for the functions of the client that need no transaction, such as
/// [`lease::acquire`](idem_client::lease::acquire). Each call commits.
pub struct PostgresConnection<'c>(Mutex<&'c mut Client>);

impl<'c> PostgresConnection<'c> {
    /// Uses a connection.
    pub fn new(client: &'c mut Client) -> Self {
        Self(Mutex::new(client))
    }

    /// Borrows the connection for a statement of the application. Fails if it is borrowed already.
    pub fn client(&self) -> Result<impl DerefMut<Target = &'c mut Client>, Error> {
        lock(&self.0)
    }
}

executor!(PostgresConnection<'_>);

/// An open transaction for all functions of the client, also those that claim.
///
/// It borrows the transaction, so a claim cannot outlive the commit:
///
/// ```compile_fail,E0505
/// # fn handler(
/// #     mut tx: postgres::Transaction<'_>,
/// #     id: idem_client::MessageId,
/// #     destination: idem_client::Destination,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// use idem_postgres::{PostgresTransaction, wait};
///
/// let idem = PostgresTransaction::new(&mut tx);
/// let claim = wait(idem_client::try_claim(&idem, &id, &destination))?;
/// let claim = claim.into_new().ok_or("duplicate")?;
/// idem_postgres::commit(tx)?;
/// wait(claim.record_effects(&[]))?;
/// # Ok(()) }
/// ```
pub struct PostgresTransaction<'c, 't>(Mutex<&'c mut Transaction<'t>>);

impl<'c, 't> PostgresTransaction<'c, 't> {
    /// Uses an open transaction.
    pub fn new(tx: &'c mut Transaction<'t>) -> Self {
        Self(Mutex::new(tx))
    }

    /// Borrows the transaction for a statement of the application. Fails if it is borrowed already.
    pub fn transaction(&self) -> Result<impl DerefMut<Target = &'c mut Transaction<'t>>, Error> {
        lock(&self.0)
    }
}

executor!(PostgresTransaction<'_, '_>);

impl OpenTransaction for PostgresTransaction<'_, '_> {}
