//! A session with a very cheap client: one thread, one socket, one system call in each direction.
//!
//! On a small machine, the client and the server share the processors. So the work of the client is
//! part of every figure, and makes the difference between two sides look smaller than it is.
//! pgbench is as cheap, but it cannot act on the number of rows that an INSERT added. A
//! hand-written inbox needs this number to learn whether it has won the claim.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, bail};
use bytes::{Bytes, BytesMut};
use fallible_iterator::FallibleIterator;
use idem_cluster::Cluster;
use postgres_protocol::IsNull;
use postgres_protocol::message::backend::{DataRowBody, ErrorFields, Message};
use postgres_protocol::message::frontend;

/// The largest number of bytes that one read takes from the socket.
const READ_BYTES: usize = 64 * 1024;

/// A blocking connection.
pub struct Session {
    stream: UnixStream,
    incoming: BytesMut,
    outgoing: BytesMut,
    chunk: Box<[u8]>,
    pid: i32,
}

/// The result of a statement.
#[derive(Default)]
pub struct Answer {
    /// The number of rows in the command tag.
    pub rows: u64,
    /// The first column of the first row; `None` for NULL or for no row.
    pub first: Option<Bytes>,
}

impl Answer {
    /// Returns whether the first column is `true`.
    pub fn is_true(&self) -> bool {
        self.first.as_deref() == Some(b"t")
    }

    /// Returns the first column as text.
    pub fn text(&self) -> Option<&str> {
        self.first
            .as_deref()
            .and_then(|bytes| std::str::from_utf8(bytes).ok())
    }
}

impl Session {
    /// Connects as superuser.
    pub fn connect(cluster: &Cluster, database: &str) -> Result<Self> {
        let socket = cluster.socket_dir().join(".s.PGSQL.5432");
        let stream = UnixStream::connect(&socket)
            .with_context(|| format!("cannot connect to {}", socket.display()))?;
        let mut session = Self {
            stream,
            incoming: BytesMut::new(),
            outgoing: BytesMut::new(),
            chunk: vec![0; READ_BYTES].into_boxed_slice(),
            pid: 0,
        };
        let parameters = [
            ("user", "postgres"),
            ("database", database),
            ("application_name", "bench"),
        ];
        frontend::startup_message(parameters, &mut session.outgoing)?;
        session.round_trip(|_| Ok(()))?;
        Ok(session)
    }

    /// Returns the process id of the backend that serves this session.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Runs SQL in the simple query protocol.
    pub fn run(&mut self, sql: &str) -> Result<Answer> {
        frontend::query(sql, &mut self.outgoing)?;
        self.round_trip(|_| Ok(())).with_context(|| sql.to_owned())
    }

    /// Returns the first column of all rows.
    pub fn column(&mut self, sql: &str) -> Result<Vec<String>> {
        let mut column = Vec::new();
        frontend::query(sql, &mut self.outgoing)?;
        self.round_trip(|row| {
            let first = first_column(row)?.context("an unexpected NULL")?;
            column.push(String::from_utf8(first.to_vec())?);
            Ok(())
        })
        .with_context(|| sql.to_owned())?;
        Ok(column)
    }

    /// Returns the single value that a query returns.
    pub fn value<T>(&mut self, sql: &str) -> Result<T>
    where
        T: std::str::FromStr<Err: std::error::Error + Send + Sync + 'static>,
    {
        let result = self.run(sql)?;
        let text = result.text().with_context(|| format!("no value: {sql}"))?;
        text.parse().with_context(|| format!("{text} from {sql}"))
    }

    /// Prepares a statement for `execute`.
    pub fn prepare(&mut self, name: &str, sql: &str) -> Result<()> {
        frontend::parse(name, sql, [], &mut self.outgoing)?;
        frontend::sync(&mut self.outgoing);
        self.round_trip(|_| Ok(()))
            .with_context(|| sql.to_owned())?;
        Ok(())
    }

    /// Runs a prepared statement with its parameters as text, in one round trip.
    pub fn execute(&mut self, name: &str, parameters: &[&str]) -> Result<Answer> {
        self.execute_each(name, parameters, |_| Ok(()))
    }

    /// Runs a prepared statement as `execute` does, and applies `each` to every row.
    pub fn execute_each(
        &mut self,
        name: &str,
        parameters: &[&str],
        each: impl FnMut(&DataRowBody) -> Result<()>,
    ) -> Result<Answer> {
        let text = |parameter: &&str, buffer: &mut BytesMut| {
            buffer.extend_from_slice(parameter.as_bytes());
            Ok(IsNull::No)
        };
        if frontend::bind("", name, [], parameters, text, [0], &mut self.outgoing).is_err() {
            bail!("the protocol cannot encode these parameters");
        }
        frontend::execute("", 0, &mut self.outgoing)?;
        frontend::sync(&mut self.outgoing);
        self.round_trip(each).with_context(|| name.to_owned())
    }

    /// Runs a statement in the portal `portal`.
    pub fn execute_in_portal(&mut self, portal: &str, sql: &str) -> Result<Answer> {
        self.send_statement(portal, sql)?;
        frontend::sync(&mut self.outgoing);
        self.round_trip(|_| Ok(())).with_context(|| sql.to_owned())
    }

    /// Sends statements as one pipeline. PostgreSQL runs the statements one after the other. The
    /// pipeline ends with a single Sync.
    pub fn pipeline(&mut self, statements: &[&str]) -> Result<Answer> {
        for sql in statements {
            self.send_statement("", sql)?;
        }
        frontend::sync(&mut self.outgoing);
        self.round_trip(|_| Ok(()))
            .with_context(|| statements.join("; "))
    }

    fn send_statement(&mut self, portal: &str, sql: &str) -> Result<()> {
        frontend::parse("", sql, [], &mut self.outgoing)?;
        let no_parameters = |(): (), _: &mut BytesMut| Ok(IsNull::No);
        if frontend::bind(portal, "", [], [], no_parameters, [0], &mut self.outgoing).is_err() {
            bail!("the protocol cannot encode this bind message");
        }
        frontend::execute(portal, 0, &mut self.outgoing)?;
        Ok(())
    }

    /// Sends the queued messages and reads the response to its end.
    fn round_trip(&mut self, mut each: impl FnMut(&DataRowBody) -> Result<()>) -> Result<Answer> {
        self.stream.write_all(&self.outgoing)?;
        self.outgoing.clear();
        let mut result = Answer::default();
        let mut error = None;
        let mut any = false;
        loop {
            match self.message()? {
                Message::DataRow(row) => {
                    if !any {
                        result.first = first_column(&row)?;
                        any = true;
                    }
                    each(&row)?;
                }
                Message::CommandComplete(complete) => {
                    let count = complete
                        .tag()?
                        .rsplit(' ')
                        .next()
                        .and_then(|count| count.parse().ok());
                    result.rows = count.unwrap_or(0);
                }
                Message::BackendKeyData(key) => self.pid = key.process_id(),
                Message::ErrorResponse(body) => error = Some(describe(body.fields())?),
                Message::ReadyForQuery(_) => break,
                _ => {}
            }
        }
        match error {
            Some(error) => bail!(error),
            None => Ok(result),
        }
    }

    fn message(&mut self) -> Result<Message> {
        loop {
            if let Some(message) = Message::parse(&mut self.incoming)? {
                return Ok(message);
            }
            let read = self.stream.read(&mut self.chunk)?;
            if read == 0 {
                bail!("the server closed the connection");
            }
            self.incoming.extend_from_slice(&self.chunk[..read]);
        }
    }
}

fn first_column(row: &DataRowBody) -> Result<Option<Bytes>> {
    let first = row.ranges().next()?.flatten();
    Ok(first.map(|range| row.buffer_bytes().slice(range)))
}

fn describe(mut fields: ErrorFields<'_>) -> Result<String> {
    let (mut state, mut message) = (String::new(), String::new());
    while let Some(field) = fields.next()? {
        let value = || String::from_utf8_lossy(field.value_bytes()).into_owned();
        match field.type_() {
            b'C' => state = value(),
            b'M' => message = value(),
            _ => {}
        }
    }
    Ok(format!("{state}: {message}"))
}
