//! Parameters and rows in the binary format of PostgreSQL, which sqlx and `tokio-postgres` share.

use bytes::{Bytes, BytesMut};
use idem_client::tokio_postgres::types::{IsNull, Kind, ToSql, Type};
use idem_client::{Column as ResultColumn, Error, Row};
use sqlx::postgres::{
    PgArgumentBuffer, PgArguments, PgRow, PgTypeInfo, PgValueFormat, PgValueRef, Postgres,
    types::Oid,
};
use sqlx::{Arguments, Column, Encode, Row as _, TypeInfo, ValueRef, error::BoxDynError};

/// Returns the parameters of a statement as sqlx sends them.
pub fn arguments(parameters: &[(&(dyn ToSql + Sync), Type)]) -> Result<PgArguments, Error> {
    let mut arguments = PgArguments::default();
    for (value, type_) in parameters {
        let invalid = |error: BoxDynError| Error::Invalid(error.to_string());
        let mut bytes = BytesMut::new();
        let is_null = value.to_sql_checked(type_, &mut bytes).map_err(invalid)?;
        let value = Parameter {
            type_: type_.oid(),
            bytes: matches!(is_null, IsNull::No).then_some(bytes),
        };
        arguments.add(value).map_err(invalid)?;
    }
    Ok(arguments)
}

/// Returns a statement with the types of its parameters in a comment.
///
/// sqlx prepares a statement once for each text, with the types of its first call. An id is a text
/// or a uuid, so the same text would send the bytes of a uuid as a text.
pub fn with_types(sql: &str, parameters: &[(&(dyn ToSql + Sync), Type)]) -> String {
    let types: Vec<_> = parameters.iter().map(|(_, type_)| type_.name()).collect();
    format!("{sql} /* {} */", types.join(", "))
}

/// A parameter of any type. `bytes` is `None` for NULL.
struct Parameter {
    type_: u32,
    bytes: Option<BytesMut>,
}

impl sqlx::Type<Postgres> for Parameter {
    fn type_info() -> PgTypeInfo {
        // Not used: each parameter produces a type of its own.
        PgTypeInfo::with_oid(Oid(Type::UNKNOWN.oid()))
    }
}

impl Encode<'_, Postgres> for Parameter {
    fn encode_by_ref(
        &self,
        buf: &mut PgArgumentBuffer,
    ) -> Result<sqlx::encode::IsNull, BoxDynError> {
        let Some(bytes) = &self.bytes else {
            return Ok(sqlx::encode::IsNull::Yes);
        };
        buf.extend_from_slice(bytes);
        Ok(sqlx::encode::IsNull::No)
    }

    fn produces(&self) -> Option<PgTypeInfo> {
        Some(PgTypeInfo::with_oid(Oid(self.type_)))
    }
}

/// Returns a row of sqlx as the client reads it, for an executor over a library that uses sqlx.
///
/// Fails with [`Error::Unexpected`] if a value is not in the binary format.
pub fn row(row: &PgRow) -> Result<Row, Error> {
    let columns = row.columns().iter().enumerate().map(|(number, column)| {
        let unreadable = |reason: &dyn std::fmt::Display| {
            Error::Unexpected(format!("column {} of a result: {reason}", column.name()))
        };
        let value = row
            .try_get_raw(number)
            .map_err(|error| unreadable(&error))?;
        Ok(ResultColumn {
            name: column.name().to_owned(),
            type_: type_of(&value).ok_or_else(|| unreadable(&"it has no type"))?,
            value: bytes_of(&value).map_err(|error| unreadable(&error))?,
        })
    });
    Ok(Row::from_columns(columns.collect::<Result<_, Error>>()?))
}

fn type_of(value: &PgValueRef<'_>) -> Option<Type> {
    let info = value.type_info();
    let oid = info.oid()?.0;
    Some(Type::from_oid(oid).unwrap_or_else(|| {
        // The statements of the client cast the types of idem to text.
        Type::new(info.name().to_owned(), oid, Kind::Simple, String::new())
    }))
}

fn bytes_of(value: &PgValueRef<'_>) -> Result<Option<Bytes>, BoxDynError> {
    if value.is_null() {
        return Ok(None);
    }
    match value.format() {
        PgValueFormat::Binary => Ok(Some(Bytes::copy_from_slice(value.as_bytes()?))),
        PgValueFormat::Text => Err("the value is not in the binary format".into()),
    }
}
