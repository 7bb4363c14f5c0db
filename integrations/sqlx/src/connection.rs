//! Connections and transactions of sqlx that execute the functions of the client.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

use idem_client::tokio_postgres::types::{ToSql, Type};
use idem_client::{Error, Executor, OpenTransaction, Row};
use sqlx::{AssertSqlSafe, PgConnection, Postgres, Transaction};
use tokio::sync::{Mutex, MutexGuard};

use crate::binary::{arguments, row, with_types};
use crate::error::translated;

/// A connection that the functions of the client and the application use in turn.
struct Shared<'c> {
    connection: Mutex<&'c mut PgConnection>,
    is_borrowed: AtomicBool,
}

impl<'c> Shared<'c> {
    fn new(connection: &'c mut PgConnection) -> Self {
        Self {
            connection: Mutex::new(connection),
            is_borrowed: AtomicBool::new(false),
        }
    }

    async fn borrow(&self) -> Borrowed<'_, 'c> {
        let connection = self.connection.lock().await;
        self.is_borrowed.store(true, Ordering::Release);
        Borrowed {
            is_borrowed: &self.is_borrowed,
            connection,
        }
    }

    /// Waits for other functions of the client. Fails while the application has borrowed the
    /// connection, because it may be the caller, and would then wait for itself.
    async fn lock(&self) -> Result<MutexGuard<'_, &'c mut PgConnection>, Error> {
        match self.connection.try_lock() {
            Ok(connection) => Ok(connection),
            Err(_) if self.is_borrowed.load(Ordering::Acquire) => Err(Error::Invalid(
                "the connection is borrowed: drop the value that `connection` returned before \
                 this call"
                    .into(),
            )),
            Err(_) => Ok(self.connection.lock().await),
        }
    }

    async fn fetch_all(
        &self,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, Error> {
        let arguments = arguments(parameters)?;
        let mut connection = self.lock().await?;
        let sql = with_types(sql, parameters);
        let rows = sqlx::query_with(AssertSqlSafe(sql), arguments)
            .fetch_all(&mut **connection)
            .await
            .map_err(translated)?;
        rows.iter().map(row).collect()
    }
}

/// The connection, for a statement of the application. Drop it before the next function of the
/// client is called.
pub struct Borrowed<'g, 'c> {
    is_borrowed: &'g AtomicBool,
    connection: MutexGuard<'g, &'c mut PgConnection>,
}

impl Deref for Borrowed<'_, '_> {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.connection
    }
}

impl DerefMut for Borrowed<'_, '_> {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}

impl Drop for Borrowed<'_, '_> {
    fn drop(&mut self) {
        self.is_borrowed.store(false, Ordering::Release);
    }
}

/// A connection of sqlx for the functions of the client that need no transaction, such as
/// [`lease::acquire`](idem_client::lease::acquire). Outside of a transaction each call commits.
pub struct SqlxConnection<'c>(Shared<'c>);

impl<'c> SqlxConnection<'c> {
    /// Uses a connection: a `PoolConnection` dereferences to it (`&mut *connection`).
    pub fn new(connection: &'c mut PgConnection) -> Self {
        Self(Shared::new(connection))
    }

    /// Borrows the connection for a statement of the application: `&mut *idem.connection().await`.
    pub async fn connection(&self) -> Borrowed<'_, 'c> {
        self.0.borrow().await
    }
}

impl Executor for SqlxConnection<'_> {
    async fn fetch_all(
        &self,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, Error> {
        self.0.fetch_all(sql, parameters).await
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
pub struct SqlxTransaction<'c>(Shared<'c>);

impl<'c> SqlxTransaction<'c> {
    /// Uses an open transaction.
    pub fn new(tx: &'c mut Transaction<'_, Postgres>) -> Self {
        Self(Shared::new(tx))
    }

    /// Borrows the connection for a statement of the application: `&mut *idem.connection().await`.
    pub async fn connection(&self) -> Borrowed<'_, 'c> {
        self.0.borrow().await
    }
}

impl Executor for SqlxTransaction<'_> {
    async fn fetch_all(
        &self,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, Error> {
        self.0.fetch_all(sql, parameters).await
    }
}

impl OpenTransaction for SqlxTransaction<'_> {}
