//! The trait of connections and transactions that can execute the SQL functions.

use std::{future::Future, sync::Arc};

use futures_util::future::BoxFuture;
use tokio_postgres::{
    Client, Transaction,
    types::{FromSqlOwned, ToSql, Type},
};

use crate::{Error, Row};

/// A connection or a transaction that executes statements. The functions of this crate take it.
///
/// This crate implements the trait for a client and a transaction of `tokio-postgres`, and with the
/// feature `deadpool` for those of `deadpool-postgres`. A reference, `Box` or `Arc` of an executor
/// is an executor too. A connection of `bb8-postgres` is passed as its client: `&*connection`.
///
/// An application implements it for a type of its own with one method:
///
/// ```
/// use idem_client::{Error, Executor, Row};
/// use tokio_postgres::types::{ToSql, Type};
///
/// struct Counted {
///     client: tokio_postgres::Client,
///     statements: std::sync::atomic::AtomicUsize,
/// }
///
/// impl Executor for Counted {
///     async fn fetch_all(
///         &self,
///         sql: &str,
///         parameters: &[(&(dyn ToSql + Sync), Type)],
///     ) -> Result<Vec<Row>, Error> {
///         self.statements.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
///         self.client.fetch_all(sql, parameters).await
///     }
/// }
/// ```
///
/// The methods have other names than those of the driver, so importing the trait does not change
/// the meaning of a method call on a pooled connection.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not execute statements",
    label = "not a connection and not a transaction",
    note = "a pool is not an executor: get a connection from the pool first, and pass the \
            connection or a transaction on it",
    note = "connections of deadpool-postgres need the feature `deadpool` of idem-client; pass a \
            connection of bb8-postgres as `&*connection`"
)]
pub trait Executor: Sync {
    /// Executes one statement and returns its rows.
    ///
    /// - `sql`: one statement with the parameters `$1`, `$2`, …
    /// - `parameters`: each value and its type, as for
    ///   [`Client::query_typed`](tokio_postgres::Client::query_typed).
    ///
    /// All statements are executed in the order of the first polls of their futures, on one
    /// connection. With `tokio-postgres` the first poll also sends the statement, so several
    /// statements can share a round trip.
    ///
    /// Returns the error of the driver, which contains the SQLSTATE: for another driver than
    /// `tokio-postgres`, a [`DriverError`](crate::DriverError).
    fn fetch_all(
        &self,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> impl Future<Output = Result<Vec<Row>, Error>> + Send;

    /// Executes one statement and returns its only row.
    ///
    /// Fails with [`Error::Unexpected`] if the statement does not return exactly one row, and
    /// otherwise as [`fetch_all`](Self::fetch_all).
    fn fetch_one(
        &self,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> impl Future<Output = Result<Row, Error>> + Send {
        async move {
            let mut rows = self.fetch_all(sql, parameters).await?;
            match (rows.pop(), rows.len()) {
                (Some(row), 0) => Ok(row),
                (last, others) => Err(Error::Unexpected(format!(
                    "{} rows instead of one for {sql:?}",
                    others + usize::from(last.is_some())
                ))),
            }
        }
    }
}

/// Executes one statement and returns the only value of its only row.
pub(crate) async fn value<T: FromSqlOwned>(
    executor: &(impl Executor + ?Sized),
    sql: &str,
    parameters: &[(&(dyn ToSql + Sync), Type)],
) -> Result<T, Error> {
    executor.fetch_one(sql, parameters).await?.try_get(0)
}

/// An [`Executor`] that is one open transaction. Claims take it.
///
/// A claim that is the only statement of its transaction loses the message when the work after it
/// fails. So a claim needs a transaction that is open before the claim and after it.
///
/// Implement it only for a type whose values exist from BEGIN to COMMIT or ROLLBACK, and whose
/// functions that end the transaction consume the value. A [`Claimed`](crate::Claimed) borrows the
/// value, so the compiler then rejects a use of the claim after the end of the transaction.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an open transaction",
    label = "not a transaction",
    note = "a claim needs an open transaction: begin one with `client.transaction().await?`, or \
            use `begin_and_claim`",
    note = "transactions of deadpool-postgres need the feature `deadpool` of idem-client"
)]
pub trait OpenTransaction: Executor {}

impl OpenTransaction for Transaction<'_> {}
#[cfg(feature = "deadpool")]
impl OpenTransaction for deadpool_postgres::Transaction<'_> {}

/// An executor behind a pointer, so that [`Claimed`](crate::Claimed) has no type parameter.
pub(crate) trait AnyExecutor: Sync {
    /// See [`Executor::fetch_all`].
    fn fetch_boxed<'f>(
        &'f self,
        sql: &'f str,
        parameters: &'f [(&'f (dyn ToSql + Sync), Type)],
    ) -> BoxFuture<'f, Result<Vec<Row>, Error>>;
}

impl<E: Executor> AnyExecutor for E {
    fn fetch_boxed<'f>(
        &'f self,
        sql: &'f str,
        parameters: &'f [(&'f (dyn ToSql + Sync), Type)],
    ) -> BoxFuture<'f, Result<Vec<Row>, Error>> {
        Box::pin(self.fetch_all(sql, parameters))
    }
}

impl Executor for dyn AnyExecutor + '_ {
    async fn fetch_all(
        &self,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, Error> {
        self.fetch_boxed(sql, parameters).await
    }
}

/// Implements [`Executor`] for types that are, or dereference to, a client or a transaction of the
/// driver.
macro_rules! execute_with_driver {
    ($($(#[$attribute:meta])* $type:ty;)*) => {$(
        $(#[$attribute])*
        impl Executor for $type {
            async fn fetch_all(
                &self,
                sql: &str,
                parameters: &[(&(dyn ToSql + Sync), Type)],
            ) -> Result<Vec<Row>, Error> {
                let rows = self.query_typed(sql, parameters).await?;
                Ok(rows.into_iter().map(Row::from).collect())
            }
        }
    )*};
}

execute_with_driver! {
    Client;
    Transaction<'_>;
    #[cfg(feature = "deadpool")]
    deadpool_postgres::Client;
    #[cfg(feature = "deadpool")]
    deadpool_postgres::ClientWrapper;
    #[cfg(feature = "deadpool")]
    deadpool_postgres::Transaction<'_>;
}

/// Implements both traits for pointers.
macro_rules! execute_through_pointer {
    ($([$($bound:tt)*] $pointer:ty;)*) => {$(
        impl<E: Executor + $($bound)* ?Sized> Executor for $pointer {
            fn fetch_all(
                &self,
                sql: &str,
                parameters: &[(&(dyn ToSql + Sync), Type)],
            ) -> impl Future<Output = Result<Vec<Row>, Error>> + Send {
                E::fetch_all(self, sql, parameters)
            }
        }

        impl<E: OpenTransaction + $($bound)* ?Sized> OpenTransaction for $pointer {}
    )*};
}

execute_through_pointer! {
    [] &E;
    [] &mut E;
    [] Box<E>;
    [Send +] Arc<E>;
}
