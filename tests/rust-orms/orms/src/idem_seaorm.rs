//! The functions of idem in a transaction of SeaORM. Copy this file into your application.

use idem_client::tokio_postgres::types::{FromSql, IsNull, Json, ToSql, Type};
use idem_client::{DriverError, Error, ErrorKind, Executor, OpenTransaction, Row};
use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, DbErr, RuntimeErr};
use sea_orm::{Statement, Value};
use serde_json::Value as AnyJson;
use time::format_description::well_known::Rfc3339;

/// A connection or a transaction of SeaORM for the functions of the client. Functions that claim
/// need a [`DatabaseTransaction`].
///
/// A claim on the pool does not compile:
///
/// ```compile_fail,E0277
/// # use idem_rust_orms::idem_seaorm::SeaOrm;
/// # async fn handle(
/// #     db: sea_orm::DatabaseConnection,
/// #     id: idem_client::MessageId,
/// #     destination: idem_client::Destination,
/// # ) -> Result<(), idem_client::Error> {
/// let _ = idem_client::try_claim(&SeaOrm(&db), &id, &destination).await?;
/// # Ok(()) }
/// ```
///
/// A claim that outlives the commit does not compile either:
///
/// ```compile_fail,E0505
/// # use idem_rust_orms::idem_seaorm::{SeaOrm, commit};
/// # async fn handle(
/// #     tx: sea_orm::DatabaseTransaction,
/// #     id: idem_client::MessageId,
/// #     destination: idem_client::Destination,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let idem = SeaOrm(&tx);
/// let claim = idem_client::try_claim(&idem, &id, &destination).await?;
/// let claim = claim.into_new().ok_or("duplicate")?;
/// commit(tx).await?;
/// claim.record_effects(&[]).await?;
/// # Ok(()) }
/// ```
///
/// Recording in the transaction compiles:
///
/// ```
/// # use idem_rust_orms::idem_seaorm::{SeaOrm, commit};
/// # async fn handle(
/// #     tx: sea_orm::DatabaseTransaction,
/// #     id: idem_client::MessageId,
/// #     destination: idem_client::Destination,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let idem = SeaOrm(&tx);
/// let claim = idem_client::try_claim(&idem, &id, &destination).await?;
/// let claim = claim.into_new().ok_or("duplicate")?;
/// claim.record_effects(&[]).await?;
/// commit(tx).await?;
/// # Ok(()) }
/// ```
pub struct SeaOrm<'c, C>(pub &'c C);

impl<C: ConnectionTrait> Executor for SeaOrm<'_, C> {
    async fn fetch_all(
        &self,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, Error> {
        let values = parameters
            .iter()
            .map(|(value, type_)| value_of(*value, type_))
            .collect::<Result<Vec<_>, _>>()?;
        let sql = with_casts(sql, parameters);
        let statement = Statement::from_sql_and_values(DbBackend::Postgres, sql, values);
        let rows = self.0.query_all_raw(statement).await.map_err(translated)?;
        let rows = rows.iter().map(|row| match row.try_as_pg_row() {
            Some(row) => idem_sqlx::row(row),
            None => Err(Error::Unexpected("a row of another database".into())),
        });
        rows.collect()
    }
}

impl OpenTransaction for SeaOrm<'_, DatabaseTransaction> {}

/// Fails if a statement of the transaction has failed, or if the transaction has ended.
///
/// The server executes ROLLBACK in place of COMMIT then, and SeaORM reports success. So call this
/// at the end of the closure of `transaction`.
pub async fn check(tx: &DatabaseTransaction) -> Result<(), Error> {
    let marked = tx.execute_unprepared("SAVEPOINT idem").await;
    marked.map(drop).map_err(|error| {
        let error = translated(error);
        match error.sqlstate().map(|state| state.code()) {
            Some("25P01") => Error::TransactionEnded,
            _ => error,
        }
    })
}

/// Commits the outermost transaction. Acknowledge the message only after `Ok`.
///
/// End or drop each nested transaction before. While one is open, SeaORM only releases its
/// savepoint, reports success, and rolls everything back.
///
/// The kind `AmbiguousCommit` means that the connection was lost during COMMIT.
pub async fn commit(tx: DatabaseTransaction) -> Result<(), Error> {
    check(&tx).await?;
    let committed = tx.commit().await;
    committed.map_err(|error| driver_error(error).of_commit().into())
}

/// Returns an error of SeaORM as an error of the client, with its SQLSTATE and its kind.
pub fn translated(error: DbErr) -> Error {
    driver_error(error).into()
}

fn driver_error(error: DbErr) -> DriverError {
    match &error {
        DbErr::Conn(RuntimeErr::SqlxError(cause))
        | DbErr::Exec(RuntimeErr::SqlxError(cause))
        | DbErr::Query(RuntimeErr::SqlxError(cause)) => {
            idem_sqlx::driver_error_in(&cause.clone(), error)
        }
        DbErr::ConnectionAcquire(_) => DriverError::of_driver(ErrorKind::PoolExhausted, error),
        _ => DriverError::of_driver(ErrorKind::Other, error),
    }
}

/// Returns the statement with the type of each parameter, because SeaORM sends texts. A statement
/// of the client contains `$` only in the number of a parameter.
fn with_casts(sql: &str, parameters: &[(&(dyn ToSql + Sync), Type)]) -> String {
    let mut parts = sql.split('$');
    let mut cast = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_digit());
        let (number, rest) = part.split_at(end.unwrap_or(part.len()));
        let number: Option<usize> = number.parse().ok();
        let index = number.and_then(|number| number.checked_sub(1));
        match index.and_then(|index| Some((number?, parameters.get(index)?))) {
            Some((number, (_, type_))) => cast += &format!("CAST(${number} AS {type_}){rest}"),
            None => cast += &format!("${part}"),
        }
    }
    cast
}

/// Returns a parameter as a text, or as bytes.
fn value_of(value: &(dyn ToSql + Sync), type_: &Type) -> Result<Value, Error> {
    let invalid =
        |error: Box<dyn std::error::Error + Send + Sync>| Error::Invalid(error.to_string());
    let mut bytes = Default::default();
    let is_null = value.to_sql_checked(type_, &mut bytes).map_err(invalid)?;
    let bytes = matches!(is_null, IsNull::No).then_some(&bytes[..]);
    if *type_ == Type::BYTEA {
        return Ok(Value::Bytes(bytes.map(<[u8]>::to_vec)));
    }
    let text = bytes.map(|bytes| text_of(type_, bytes)).transpose();
    Ok(Value::String(text.map_err(invalid)?))
}

type Text = Result<String, Box<dyn std::error::Error + Send + Sync>>;

/// Returns the text of a value in the binary format.
fn text_of(type_: &Type, bytes: &[u8]) -> Text {
    Ok(match *type_ {
        Type::TEXT => String::from_sql(type_, bytes)?,
        Type::UUID => uuid::Uuid::from_sql(type_, bytes)?.to_string(),
        Type::BOOL => bool::from_sql(type_, bytes)?.to_string(),
        Type::INT4 => i32::from_sql(type_, bytes)?.to_string(),
        Type::INT8 => i64::from_sql(type_, bytes)?.to_string(),
        Type::FLOAT8 => f64::from_sql(type_, bytes)?.to_string(),
        Type::JSONB => Json::<AnyJson>::from_sql(type_, bytes)?.0.to_string(),
        Type::TIMESTAMPTZ => time::OffsetDateTime::from_sql(type_, bytes)?.format(&Rfc3339)?,
        Type::TEXT_ARRAY => array::<String>(type_, bytes, Ok)?,
        Type::UUID_ARRAY => array::<uuid::Uuid>(type_, bytes, |id| Ok(id.to_string()))?,
        Type::JSONB_ARRAY => array::<Json<AnyJson>>(type_, bytes, |json| Ok(json.0.to_string()))?,
        Type::TIMESTAMPTZ_ARRAY => {
            array::<time::OffsetDateTime>(type_, bytes, |time| Ok(time.format(&Rfc3339)?))?
        }
        Type::BYTEA_ARRAY => array::<Vec<u8>>(type_, bytes, |bytes| {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            Ok(format!("\\x{hex}"))
        })?,
        _ => return Err(format!("the type {type_} is not supported").into()),
    })
}

fn array<'a, T: FromSql<'a>>(type_: &Type, bytes: &'a [u8], text_of: impl Fn(T) -> Text) -> Text {
    let values = Vec::<Option<T>>::from_sql(type_, bytes)?;
    let elements = values.into_iter().map(|value| match value {
        None => Ok("NULL".to_owned()),
        Some(value) => {
            let text = text_of(value)?.replace('\\', r"\\").replace('"', "\\\"");
            Ok(format!("\"{text}\""))
        }
    });
    let elements: Result<Vec<_>, Box<dyn std::error::Error + Send + Sync>> = elements.collect();
    Ok(format!("{{{}}}", elements?.join(",")))
}
