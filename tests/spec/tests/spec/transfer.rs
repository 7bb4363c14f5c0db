//! A driver of the runner: tokio-postgres, which sends a statement with literals over the simple
//! protocol, or with untyped parameters over the extended protocol.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use idem_spec::{Cell, Driver, Outcome, Refusal, Saved, hex, text_of, with_literals};
use idem_testkit::{Database, Session};
use postgres_protocol::types::{array_from_sql, bool_from_sql};
use serde_json::Value;
use tokio_postgres::types::{Format, FromSql, IsNull, Kind, ToSql, Type};
use tokio_postgres::{Error, SimpleQueryMessage};

/// How the driver sends the arguments of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// As `psql` does: the simple protocol, results in text format.
    Literals,
    /// As most drivers do: the extended protocol, parameters as text without a type, results in
    /// binary format.
    Untyped,
}

/// The connections of a case to one database.
pub struct TokioPostgres<'a> {
    db: &'a Database,
    transfer: Transfer,
    sessions: BTreeMap<String, Session>,
}

impl<'a> TokioPostgres<'a> {
    pub fn new(db: &'a Database, transfer: Transfer) -> Self {
        Self {
            db,
            transfer,
            sessions: BTreeMap::new(),
        }
    }
}

impl Driver for TokioPostgres<'_> {
    async fn execute(
        &mut self,
        session: &str,
        sql: &str,
        arguments: &[Value],
        saved: &Saved,
    ) -> Result<Outcome> {
        if !self.sessions.contains_key(session) {
            let opened = self.db.connect_on_defaults().await?;
            self.sessions.insert(session.to_owned(), opened);
        }
        let session = &self.sessions[session];
        let result = match self.transfer {
            Transfer::Literals => {
                let sql = with_literals(sql, arguments, saved)?;
                let messages = session.simple_query(&sql).await;
                messages.map(|messages| text_rows(&messages))
            }
            Transfer::Untyped => untyped(session, sql, arguments, saved).await?,
        };
        match result {
            Ok(rows) => Ok(Ok(rows)),
            Err(error) => match error.as_db_error() {
                Some(error) => Ok(Err(Refusal {
                    sqlstate: error.code().code().to_owned(),
                    hint: error.hint().unwrap_or_default().to_owned(),
                    message: error.message().to_owned(),
                })),
                None => Err(error.into()),
            },
        }
    }

    async fn close(&mut self) -> Result<()> {
        self.sessions.clear();
        Ok(())
    }
}

type Rows = Vec<Vec<Cell>>;

/// Prepares the statement first. The client library then reads the types that it does not know from
/// the server, which is not possible after an error of the execution.
async fn untyped(
    session: &Session,
    sql: &str,
    arguments: &[Value],
    saved: &Saved,
) -> Result<Result<Rows, Error>> {
    let texts = arguments
        .iter()
        .map(|argument| text_of(argument, saved).map(Untyped));
    let texts: Vec<_> = texts.collect::<Result<_>>()?;
    let types = vec![Type::UNKNOWN; texts.len()];
    let statement = match session.prepare_typed(sql, &types).await {
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
            let Received(cell) = row
                .try_get(n)
                .with_context(|| format!("column {}", row.columns()[n].name()))?;
            Ok(cell)
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

/// A value of a result. The driver knows its type.
struct Received(Cell);

impl<'a> FromSql<'a> for Received {
    fn from_sql(of_type: &Type, raw: &'a [u8]) -> Result<Self, BoxedError> {
        if let Kind::Array(element) = of_type.kind() {
            let array = array_from_sql(raw)?;
            let cells = array
                .values()
                .map(|raw| Self::from_sql_nullable(element, raw).map(|Self(cell)| cell));
            return Ok(Self(Cell::Array(cells.collect()?)));
        }
        Ok(Self(Cell::Text(match *of_type {
            Type::BOOL => if bool_from_sql(raw)? { "t" } else { "f" }.to_owned(),
            Type::INT4 => i32::from_sql(of_type, raw)?.to_string(),
            Type::INT8 => i64::from_sql(of_type, raw)?.to_string(),
            Type::UUID => uuid::Uuid::from_sql(of_type, raw)?.to_string(),
            Type::BYTEA => hex(raw),
            Type::JSON | Type::JSONB => Value::from_sql(of_type, raw)?.to_string(),
            Type::VOID => String::new(),
            Type::TEXT | Type::UNKNOWN => String::from_utf8(raw.to_vec())?,
            _ if matches!(of_type.kind(), Kind::Enum(_)) => String::from_utf8(raw.to_vec())?,
            _ => return Err(format!("cast {of_type} to text in the SQL").into()),
        })))
    }

    fn from_sql_null(_: &Type) -> Result<Self, BoxedError> {
        Ok(Self(Cell::Null))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}
