//! Connections and transactions of sqlx that execute the functions of the client.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

use idem_client::tokio_postgres::types::{ToSql, Type};
use idem_client::{DriverError, Error, ErrorKind, Executor, OpenTransaction, Row};
use sqlx::{AssertSqlSafe, PgConnection, Postgres, Transaction};
use tokio::sync::{Mutex, MutexGuard};

use crate::binary::{arguments, row, with_types};
use crate::error::translated;

/// A connection that the functions of the client and the application use in turn. `C` dereferences
/// to it.
struct Shared<C> {
    connection: Mutex<C>,
    is_borrowed: AtomicBool,
    is_prepared: bool,
    /// The method that borrows it, which is also the name of `C` in errors.
    method: &'static str,
}

impl<C: DerefMut<Target = T>, T> Shared<C> {
    fn new(connection: C, method: &'static str) -> Self {
        Self {
            connection: Mutex::new(connection),
            is_borrowed: AtomicBool::new(false),
            is_prepared: true,
            method,
        }
    }

    /// Fails instead of waiting: the caller itself may have borrowed the connection.
    fn borrow(&self) -> Result<Borrowed<'_, C>, Error> {
        let connection = self.connection.try_lock().map_err(|_| self.in_use())?;
        self.is_borrowed.store(true, Ordering::Release);
        Ok(Borrowed {
            is_borrowed: &self.is_borrowed,
            connection,
        })
    }

    /// Waits for other functions of the client. Fails while the application has borrowed the
    /// connection, because it may be the caller, and would then wait for itself.
    async fn lock(&self) -> Result<MutexGuard<'_, C>, Error> {
        match self.connection.try_lock() {
            Ok(connection) => Ok(connection),
            Err(_) if self.is_borrowed.load(Ordering::Acquire) => Err(self.in_use()),
            Err(_) => Ok(self.connection.lock().await),
        }
    }

    /// Returns an error that names what the caller must do before the call.
    fn in_use(&self) -> Error {
        let name = self.method;
        let action = match self.is_borrowed.load(Ordering::Acquire) {
            true => format!("drop the value that `{name}` returned before this call"),
            false => format!("await the function of the client before `{name}` is called"),
        };
        DriverError::of_driver(ErrorKind::Other, format!("the {name} is in use: {action}")).into()
    }

    async fn fetch_all(
        &self,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
        connection_of: impl Fn(&mut T) -> &mut PgConnection,
    ) -> Result<Vec<Row>, Error> {
        let arguments = arguments(parameters)?;
        let mut connection = self.lock().await?;
        let rows = sqlx::query_with(AssertSqlSafe(with_types(sql, parameters)), arguments)
            .persistent(self.is_prepared)
            .fetch_all(connection_of(&mut connection))
            .await
            .map_err(translated)?;
        rows.iter().map(row).collect()
    }
}

/// The connection or the transaction, for a statement of the application. Drop it before the next
/// function of the client is called.
pub struct Borrowed<'g, C> {
    is_borrowed: &'g AtomicBool,
    connection: MutexGuard<'g, C>,
}

impl<C: Deref> Deref for Borrowed<'_, C> {
    type Target = C::Target;

    fn deref(&self) -> &C::Target {
        &self.connection
    }
}

impl<C: DerefMut> DerefMut for Borrowed<'_, C> {
    fn deref_mut(&mut self) -> &mut C::Target {
        &mut self.connection
    }
}

impl<C> Drop for Borrowed<'_, C> {
    fn drop(&mut self) {
        self.is_borrowed.store(false, Ordering::Release);
    }
}

/// A connection of sqlx for the functions of the client that need no transaction, such as
/// [`lease::acquire`](idem_client::lease::acquire). Outside of a transaction each call commits.
pub struct SqlxConnection<'c>(Shared<&'c mut PgConnection>);

impl<'c> SqlxConnection<'c> {
    /// Uses a connection: a `PoolConnection` dereferences to it (`&mut connection`).
    pub fn new(connection: &'c mut PgConnection) -> Self {
        Self(Shared::new(connection, "connection"))
    }

    /// Borrows the connection for a statement of the application: `&mut *idem.connection()?`.
    ///
    /// Fails if the connection is in use. It is borrowed until the end of the loop in
    /// `for row in ….fetch_all(&mut *idem.connection()?).await?`.
    pub fn connection(&self) -> Result<Borrowed<'_, &'c mut PgConnection>, Error> {
        self.0.borrow()
    }
}

impl Executor for SqlxConnection<'_> {
    async fn fetch_all(
        &self,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, Error> {
        self.0
            .fetch_all(sql, parameters, |connection| connection)
            .await
    }
}

/// An open transaction of sqlx for all functions of the client, also those that claim.
///
/// It borrows the transaction, so a claim cannot outlive the commit:
///
/// ```compile_fail,E0505
/// # async fn handler(
/// #     mut tx: sqlx::Transaction<'_, sqlx::Postgres>,
/// #     id: idem_client::MessageId,
/// #     destination: idem_client::Destination,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let idem = idem_sqlx::SqlxTransaction::new(&mut tx);
/// let claim = idem_client::try_claim(&idem, &id, &destination).await?;
/// let claim = claim.into_new().ok_or("duplicate")?;
/// idem_sqlx::commit(tx).await?;
/// claim.record_effects(&[]).await?;
/// # Ok(()) }
/// ```
///
/// Recording before the commit compiles:
///
/// ```
/// # async fn handler(
/// #     mut tx: sqlx::Transaction<'_, sqlx::Postgres>,
/// #     id: idem_client::MessageId,
/// #     destination: idem_client::Destination,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let idem = idem_sqlx::SqlxTransaction::new(&mut tx);
/// let claim = idem_client::try_claim(&idem, &id, &destination).await?;
/// let claim = claim.into_new().ok_or("duplicate")?;
/// claim.record_effects(&[]).await?;
/// idem_sqlx::commit(tx).await?;
/// # Ok(()) }
/// ```
pub struct SqlxTransaction<'c, 't>(Shared<&'c mut Transaction<'t, Postgres>>);

impl<'c, 't> SqlxTransaction<'c, 't> {
    /// Uses an open transaction.
    pub fn new(tx: &'c mut Transaction<'t, Postgres>) -> Self {
        Self(Shared::new(tx, "transaction"))
    }

    /// Does not prepare the statements of idem, for PgBouncer in transaction mode without
    /// `max_prepared_statements`. Each function then needs a round trip more.
    #[must_use]
    pub fn unprepared(self) -> Self {
        Self(Shared {
            is_prepared: false,
            ..self.0
        })
    }

    /// Borrows the transaction for a function of the application, or for a statement:
    /// `&mut **idem.transaction()?`.
    ///
    /// Fails if the transaction is in use. In
    /// `for row in ….fetch_all(&mut **idem.transaction()?).await?` it is borrowed until the end of
    /// the loop.
    pub fn transaction(&self) -> Result<Borrowed<'_, &'c mut Transaction<'t, Postgres>>, Error> {
        self.0.borrow()
    }
}

impl Executor for SqlxTransaction<'_, '_> {
    async fn fetch_all(
        &self,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, Error> {
        self.0.fetch_all(sql, parameters, |tx| &mut **tx).await
    }
}

impl OpenTransaction for SqlxTransaction<'_, '_> {}
