//! The functions of idem on a connection of diesel-async. Copy this file into your application.

use std::io::Write;
use std::ops::Deref;

use bytes::Bytes;
use diesel::connection::InTransactionStatus;
use diesel::pg::Pg;
use diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};
use diesel::result::{DatabaseErrorKind, Error as DieselError, QueryResult};
use diesel::row::{Field, Row as _};
use diesel::serialize::{IsNull, Output, ToSql as DieselToSql};
use diesel::sql_types::{
    Array, BigInt, Binary, Bool, Double, Integer, Jsonb, Text, Timestamptz, Untyped, Uuid,
};
use diesel_async::{
    AnsiTransactionManager, AsyncConnectionCore, AsyncPgConnection, SimpleAsyncConnection,
    TransactionManager,
};
use futures_util::TryStreamExt;
use idem_client::tokio_postgres::types::{IsNull as PgIsNull, Kind, ToSql, Type};
use idem_client::{Column, DriverError, Error, ErrorKind, Executor, OpenTransaction, Row};
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard};

/// A connection for the functions of the client that need no transaction.
pub struct DieselConnection<'c>(Mutex<&'c mut AsyncPgConnection>);

impl<'c> DieselConnection<'c> {
    /// Fails if a transaction of diesel is open on the connection. A dropped future leaves its
    /// transaction open, and then nothing would be committed.
    pub fn new(conn: &'c mut AsyncPgConnection) -> Result<Self, Error> {
        if AnsiTransactionManager::is_broken_transaction_manager(conn) {
            return Err(other("the connection has an open transaction"));
        }
        Ok(Self(Mutex::new(conn)))
    }

    /// Borrows the connection for a statement of the application: `&mut *idem.connection()?`.
    ///
    /// Fails while it is in use: drop the value before the next function of the client.
    pub fn connection(&self) -> Result<MappedMutexGuard<'_, AsyncPgConnection>, Error> {
        let in_use = |_| other("the connection is in use: drop what `connection` returned");
        let conn = self.0.try_lock().map_err(in_use)?;
        Ok(MutexGuard::map(conn, |conn| &mut **conn))
    }
}

/// Another message on the same connection would have the same error.
fn other(text: &str) -> Error {
    DriverError::of_driver(ErrorKind::Other, text).into()
}

impl Executor for DieselConnection<'_> {
    async fn fetch_all(
        &self,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, Error> {
        let statement = RawStatement::new(sql, parameters)?;
        let mut conn = self.connection()?;
        let rows = conn.load(statement).await.map_err(translated)?;
        let rows = rows.map_err(translated).and_then(async |row| {
            let columns = (0..row.field_count()).filter_map(|n| Some(column(&row.get(n)?)));
            Ok(Row::from_columns(columns.collect()))
        });
        rows.try_collect().await
    }
}

/// An open transaction for all functions of the client: the connection that the closure of
/// `AsyncPgConnection::transaction` gets.
///
/// A claim on a connection does not compile:
///
/// ```compile_fail,E0277
/// # use idem_rust_orms::idem_diesel::*;
/// # async fn handle(
/// #     conn: &mut diesel_async::AsyncPgConnection,
/// #     id: idem_client::MessageId,
/// #     destination: idem_client::Destination,
/// # ) -> Result<(), idem_client::Error> {
/// let idem = DieselConnection::new(conn)?;
/// let _ = idem_client::try_claim(&idem, &id, &destination).await?;
/// # Ok(()) }
/// ```
///
/// A claim in a transaction compiles:
///
/// ```
/// # use idem_rust_orms::idem_diesel::*;
/// # async fn handle(
/// #     conn: &mut diesel_async::AsyncPgConnection,
/// #     id: idem_client::MessageId,
/// #     destination: idem_client::Destination,
/// # ) -> Result<(), idem_client::Error> {
/// let idem = DieselTransaction::new(conn)?;
/// let _ = idem_client::try_claim(&idem, &id, &destination).await?;
/// # Ok(()) }
/// ```
pub struct DieselTransaction<'c>(DieselConnection<'c>);

impl<'c> DieselTransaction<'c> {
    /// Fails unless the outermost transaction of diesel is the only one on the connection.
    ///
    /// A dropped future leaves its transaction open. The next one on this connection is then a
    /// savepoint: diesel would report success, and nothing would be committed.
    pub fn new(conn: &'c mut AsyncPgConnection) -> Result<Self, Error> {
        Self::at_depth(conn, |depth| depth == 1, "the outermost `conn.transaction`")
    }

    /// For a nested transaction, inside of a transaction for which `new` was called.
    pub fn nested(conn: &'c mut AsyncPgConnection) -> Result<Self, Error> {
        Self::at_depth(conn, |depth| depth > 1, "a nested `conn.transaction`")
    }

    fn at_depth(
        conn: &'c mut AsyncPgConnection,
        is_right: impl Fn(u32) -> bool,
        needed: &str,
    ) -> Result<Self, Error> {
        match depth(conn) {
            Some(depth) if is_right(depth) => Ok(Self(DieselConnection(Mutex::new(conn)))),
            _ => Err(other(&format!("a claim needs {needed}"))),
        }
    }

    /// Fails if a statement of the transaction has failed, or if the transaction has ended. Call
    /// this at the end of the closure: the server executes ROLLBACK in place of COMMIT then, and
    /// diesel reports success.
    pub async fn check(&self) -> Result<(), Error> {
        let mut conn = self.connection()?;
        let marked = conn.batch_execute("SAVEPOINT idem").await;
        marked.map_err(translated)
    }
}

/// Returns the number of open transactions, of which all but the first are savepoints. A test
/// transaction of diesel does not count. `None`: the connection is broken.
fn depth(conn: &mut AsyncPgConnection) -> Option<u32> {
    let status = AnsiTransactionManager::transaction_manager_status_mut(conn);
    let open = &status.transaction_state().ok()?.in_transaction;
    let depth = |open: &InTransactionStatus| {
        open.transaction_depth.get() - u32::from(open.test_transaction)
    };
    Some(open.as_ref().map_or(0, depth))
}

impl<'c> Deref for DieselTransaction<'c> {
    type Target = DieselConnection<'c>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Executor for DieselTransaction<'_> {
    async fn fetch_all(
        &self,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, Error> {
        self.0.fetch_all(sql, parameters).await
    }
}

impl OpenTransaction for DieselTransaction<'_> {}

/// Returns an error of diesel as an error of the client.
///
/// diesel keeps no SQLSTATE, only a kind for some of them. All other errors of the server have the
/// kind `Other`, also those that a retry may solve.
pub fn translated(error: DieselError) -> Error {
    let DieselError::DatabaseError(kind, information) = &error else {
        return DriverError::of_driver(ErrorKind::Other, error).into();
    };
    let state = match kind {
        DatabaseErrorKind::SerializationFailure => "40001",
        DatabaseErrorKind::ReadOnlyTransaction => "25006",
        DatabaseErrorKind::UniqueViolation => "23505",
        DatabaseErrorKind::ForeignKeyViolation => "23503",
        DatabaseErrorKind::NotNullViolation => "23502",
        DatabaseErrorKind::CheckViolation => "23514",
        DatabaseErrorKind::RestrictViolation => "23001",
        DatabaseErrorKind::ExclusionViolation => "23P01",
        DatabaseErrorKind::UnableToSendCommand | DatabaseErrorKind::ClosedConnection => {
            return DriverError::of_driver(ErrorKind::ConnectionLost, error).into();
        }
        _ => return without_state(information.message(), information.hint()).into(),
    };
    let (message, hint) = (information.message().to_owned(), information.hint());
    let hint = hint.map(str::to_owned);
    DriverError::of_server(state, &message, hint.as_deref(), false, error).into()
}

fn without_state(message: &str, hint: Option<&str>) -> DriverError {
    let hint = hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
    DriverError::of_driver(ErrorKind::Other, format!("{message}{hint}"))
}

/// A statement with parameters in the binary format.
struct RawStatement {
    sql: String,
    parameters: Vec<(Type, RawValue)>,
}

/// A value in the binary format, of any type. `None` is NULL.
#[derive(Debug)]
struct RawValue(Option<Vec<u8>>);

impl<S> DieselToSql<S, Pg> for RawValue {
    fn to_sql<'b>(&'b self, out: &mut Output<'b, '_, Pg>) -> diesel::serialize::Result {
        let Some(bytes) = &self.0 else {
            return Ok(IsNull::Yes);
        };
        out.write_all(bytes)?;
        Ok(IsNull::No)
    }
}

impl RawStatement {
    fn new(sql: &str, parameters: &[(&(dyn ToSql + Sync), Type)]) -> Result<Self, Error> {
        let parameters = parameters.iter().map(|(value, type_)| {
            let mut bytes = Default::default();
            let is_null = value
                .to_sql_checked(type_, &mut bytes)
                .map_err(|error| Error::Invalid(error.to_string()))?;
            let bytes = matches!(is_null, PgIsNull::No).then(|| bytes.to_vec());
            Ok((type_.clone(), RawValue(bytes)))
        });
        Ok(Self {
            sql: sql.to_owned(),
            parameters: parameters.collect::<Result<_, Error>>()?,
        })
    }
}

/// diesel prepares a statement once for each text and types of its parameters.
impl QueryId for RawStatement {
    type QueryId = ();
    const HAS_STATIC_QUERY_ID: bool = false;
}

impl Query for RawStatement {
    type SqlType = Untyped;
}

impl QueryFragment<Pg> for RawStatement {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        out.push_sql(&self.sql);
        // diesel writes `$1`, … where a parameter is pushed. The statement already contains them.
        out.push_sql(" /* ");
        for (type_, value) in &self.parameters {
            match *type_ {
                Type::TEXT => out.push_bind_param::<Text, _>(value)?,
                Type::UUID => out.push_bind_param::<Uuid, _>(value)?,
                Type::BOOL => out.push_bind_param::<Bool, _>(value)?,
                Type::INT4 => out.push_bind_param::<Integer, _>(value)?,
                Type::INT8 => out.push_bind_param::<BigInt, _>(value)?,
                Type::FLOAT8 => out.push_bind_param::<Double, _>(value)?,
                Type::BYTEA => out.push_bind_param::<Binary, _>(value)?,
                Type::JSONB => out.push_bind_param::<Jsonb, _>(value)?,
                Type::TIMESTAMPTZ => out.push_bind_param::<Timestamptz, _>(value)?,
                Type::TEXT_ARRAY => out.push_bind_param::<Array<Text>, _>(value)?,
                Type::UUID_ARRAY => out.push_bind_param::<Array<Uuid>, _>(value)?,
                Type::BYTEA_ARRAY => out.push_bind_param::<Array<Binary>, _>(value)?,
                Type::JSONB_ARRAY => out.push_bind_param::<Array<Jsonb>, _>(value)?,
                Type::TIMESTAMPTZ_ARRAY => out.push_bind_param::<Array<Timestamptz>, _>(value)?,
                _ => return Err(DieselError::SerializationError(type_.name().into())),
            }
        }
        out.push_sql(" */");
        Ok(())
    }
}

fn column<'a>(field: &impl Field<'a, Pg>) -> Column {
    let value = field.value();
    Column {
        name: field.field_name().unwrap_or_default().to_owned(),
        // diesel does not return the type of a NULL.
        type_: value
            .as_ref()
            .map_or(Type::UNKNOWN, |value| type_of(value.get_oid().get())),
        value: value.map(|value| Bytes::copy_from_slice(value.as_bytes())),
    }
}

fn type_of(oid: u32) -> Type {
    let unknown = || Type::new(format!("type {oid}"), oid, Kind::Simple, String::new());
    Type::from_oid(oid).unwrap_or_else(unknown)
}
