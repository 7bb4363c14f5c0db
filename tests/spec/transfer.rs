//! Two ways to send a statement: with literals over the simple protocol, or with untyped parameters
//! over the extended protocol.

use anyhow::{Context, Result, bail};
use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use idem_testkit::Session;
use postgres_protocol::types::{array_from_sql, bool_from_sql};
use serde_json::Value;
use tokio_postgres::types::{Format, FromSql, IsNull, Kind, ToSql, Type};
use tokio_postgres::{Error, SimpleQueryMessage};

use super::format::Call;
use super::value::{Cell, Saved, hex, literal_of, text_of};

/// How the runner sends the arguments of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// As `psql` does: the simple protocol, results in text format.
    Literals,
    /// As most drivers do: the extended protocol, parameters as text without a type, results in
    /// binary format.
    Untyped,
}

/// The result of a statement: its rows or its error.
pub type Outcome = Result<Vec<Vec<Cell>>, Error>;

impl Transfer {
    /// Sends the statement and returns its rows or its error.
    pub async fn send(self, session: &Session, call: &Call, saved: &Saved) -> Result<Outcome> {
        match self {
            Self::Literals => {
                let sql = with_literals(&call.sql, &call.arguments, saved)?;
                Ok(session
                    .simple_query(&sql)
                    .await
                    .map(|messages| text_rows(&messages)))
            }
            Self::Untyped => untyped(session, call, saved).await,
        }
    }
}

/// Prepares the statement first. The client library then reads the types that it does not know from
/// the server, which is not possible after an error of the execution.
async fn untyped(session: &Session, call: &Call, saved: &Saved) -> Result<Outcome> {
    let texts = call
        .arguments
        .iter()
        .map(|argument| text_of(argument, saved).map(Untyped));
    let texts: Vec<_> = texts.collect::<Result<_>>()?;
    let types = vec![Type::UNKNOWN; texts.len()];
    let statement = match session.prepare_typed(&call.sql, &types).await {
        Ok(statement) => statement,
        Err(error) => return Ok(Err(error)),
    };
    let parameters: Vec<_> = texts
        .iter()
        .map(|text| text as &(dyn ToSql + Sync))
        .collect();
    match session.query(&statement, &parameters).await {
        Ok(rows) => Ok(Ok(rows.iter().map(binary_row).collect::<Result<_>>()?)),
        Err(error) => Ok(Err(error)),
    }
}

/// Replaces `$1`, `$2`… by literals, the highest number first because `$10` contains `$1`.
fn with_literals(sql: &str, arguments: &[Value], saved: &Saved) -> Result<String> {
    let mut sql = sql.to_owned();
    for (n, argument) in arguments.iter().enumerate().rev() {
        let parameter = format!("${}", n + 1);
        if !sql.contains(&parameter) {
            bail!("{sql} has no {parameter}");
        }
        sql = sql.replace(&parameter, &literal_of(argument, saved)?);
    }
    Ok(sql)
}

fn text_rows(messages: &[SimpleQueryMessage]) -> Vec<Vec<Cell>> {
    let cell = |text: Option<&str>| text.map_or(Cell::Null, |text| Cell::Text(text.to_owned()));
    messages
        .iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|n| cell(row.get(n))).collect())
            }
            _ => None,
        })
        .collect()
}

fn binary_row(row: &tokio_postgres::Row) -> Result<Vec<Cell>> {
    (0..row.len())
        .map(|n| {
            row.try_get(n)
                .with_context(|| format!("column {}", row.columns()[n].name()))
        })
        .collect()
}

/// A parameter in text format. The server infers its type.
#[derive(Debug)]
struct Untyped(Option<String>);

impl ToSql for Untyped {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, BoxedError> {
        let Some(text) = &self.0 else {
            return Ok(IsNull::Yes);
        };
        out.extend_from_slice(text.as_bytes());
        Ok(IsNull::No)
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    tokio_postgres::types::to_sql_checked!();
}

type BoxedError = Box<dyn std::error::Error + Sync + Send>;

impl<'a> FromSql<'a> for Cell {
    fn from_sql(of_type: &Type, raw: &'a [u8]) -> Result<Self, BoxedError> {
        if let Kind::Array(element) = of_type.kind() {
            let array = array_from_sql(raw)?;
            let cells = array
                .values()
                .map(|raw| Self::from_sql_nullable(element, raw));
            return Ok(Self::Array(cells.collect()?));
        }
        Ok(Self::Text(match *of_type {
            Type::BOOL => if bool_from_sql(raw)? { "t" } else { "f" }.to_owned(),
            Type::INT4 => i32::from_sql(of_type, raw)?.to_string(),
            Type::INT8 => i64::from_sql(of_type, raw)?.to_string(),
            Type::UUID => uuid::Uuid::from_sql(of_type, raw)?.to_string(),
            Type::BYTEA => hex(raw),
            Type::JSONB => Value::from_sql(of_type, raw)?.to_string(),
            Type::VOID => String::new(),
            Type::TEXT | Type::UNKNOWN => String::from_utf8(raw.to_vec())?,
            _ if matches!(of_type.kind(), Kind::Enum(_)) => String::from_utf8(raw.to_vec())?,
            _ => return Err(format!("cast {of_type} to text in the SQL").into()),
        }))
    }

    fn from_sql_null(_: &Type) -> Result<Self, BoxedError> {
        Ok(Self::Null)
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}
