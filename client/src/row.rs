//! A row of a result, from any driver.

use std::fmt::{self, Display};

use bytes::Bytes;
use tokio_postgres::{
    row::RowIndex,
    types::{FromSql, Type},
};

use crate::{Error, redacted::without_value};

/// A row that an [`Executor`](crate::Executor) returns.
#[derive(Debug)]
pub struct Row(Content);

#[derive(Debug)]
enum Content {
    Driver(tokio_postgres::Row),
    Columns(Vec<Column>),
}

/// A column of a row of another driver than `tokio-postgres`.
pub struct Column {
    /// The name.
    pub name: String,
    /// The type. For a built-in type, that of [`Type::from_oid`]. For a NULL of a driver that does
    /// not return its type, [`Type::UNKNOWN`].
    pub type_: Type,
    /// The value in the binary format of PostgreSQL, or `None` for NULL.
    pub value: Option<Bytes>,
}

impl fmt::Debug for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The value can be a part of a payload.
        write!(f, "{} {}", self.name, self.type_)
    }
}

impl Row {
    /// Creates a row of another driver than `tokio-postgres`.
    pub fn from_columns(columns: Vec<Column>) -> Self {
        Self(Content::Columns(columns))
    }

    /// Returns the value of a column: its number from 0, or its name. Fails if there is no such
    /// column, or if it has another type than `T`.
    pub fn try_get<'r, I: ColumnIndex, T: FromSql<'r>>(&'r self, index: I) -> Result<T, Error> {
        let columns = match &self.0 {
            Content::Driver(row) => return Ok(row.try_get(index)?),
            Content::Columns(columns) => columns,
        };
        let unexpected =
            |reason: &str| Error::Unexpected(format!("column {index} of a result {reason}"));
        let column = index
            .find(columns)
            .ok_or_else(|| unexpected("does not exist"))?;
        let is_untyped = column.value.is_none() && column.type_ == Type::UNKNOWN;
        if !is_untyped && !T::accepts(&column.type_) {
            return Err(unexpected(&format!("has the type {}", column.type_)));
        }
        T::from_sql_nullable(&column.type_, column.value.as_deref())
            .map_err(|error| unexpected(&format!("cannot be read: {}", without_value(&error))))
    }
}

impl From<tokio_postgres::Row> for Row {
    fn from(row: tokio_postgres::Row) -> Self {
        Self(Content::Driver(row))
    }
}

/// The number of a column, or its name.
pub trait ColumnIndex: RowIndex + Display {
    /// Returns the column.
    fn find<'c>(&self, columns: &'c [Column]) -> Option<&'c Column>;
}

impl ColumnIndex for usize {
    fn find<'c>(&self, columns: &'c [Column]) -> Option<&'c Column> {
        columns.get(*self)
    }
}

impl ColumnIndex for &str {
    fn find<'c>(&self, columns: &'c [Column]) -> Option<&'c Column> {
        columns.iter().find(|column| column.name == *self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(type_: Type, value: Option<&'static [u8]>) -> Row {
        Row::from_columns(vec![Column {
            name: "n".into(),
            type_,
            value: value.map(Bytes::from_static),
        }])
    }

    /// Goal: a NULL without a type is a NULL of every type, and a value without a type is an error.
    #[test]
    fn null_without_a_type_is_read_as_any_type() {
        let null = row(Type::UNKNOWN, None);
        assert_eq!(null.try_get::<_, Option<i32>>("n").unwrap(), None);
        assert_eq!(null.try_get::<_, Option<String>>(0).unwrap(), None);
        null.try_get::<_, i32>("n").unwrap_err();
        let value = row(Type::UNKNOWN, Some(&[0, 0, 0, 1]));
        value.try_get::<_, Option<i32>>("n").unwrap_err();
        let null = row(Type::INT8, None);
        null.try_get::<_, Option<i32>>("n").unwrap_err();
    }
}
