//! A session with the server that costs next to nothing: one thread, one socket, one system call
//! each way.
//!
//! On a small machine the client's own work is part of every figure, and it makes two sides look
//! more alike than they are. pgbench is as cheap, but it cannot see how many rows an INSERT took
//! and act on it, which is how a hand-written inbox learns that it has won.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, bail};
use bytes::{Bytes, BytesMut};
use fallible_iterator::FallibleIterator;
use idem_cluster::Cluster;
use postgres_protocol::IsNull;
use postgres_protocol::message::backend::{DataRowBody, ErrorFields, Message};
use postgres_protocol::message::frontend;

/// The most that one read takes from the socket.
const READ_BYTES: usize = 64 * 1024;

/// A connection that blocks.
pub struct Session {
    stream: UnixStream,
    incoming: BytesMut,
    outgoing: BytesMut,
    chunk: Box<[u8]>,
    pid: i32,
}

/// What a statement came to.
#[derive(Default)]
pub struct Answer {
    /// The rows that its command tag counts.
    pub rows: u64,
    /// The first column of its first row; `None` is NULL or no row.
    pub first: Option<Bytes>,
}

impl Answer {
    /// Whether the first column is `true`.
    pub fn is_true(&self) -> bool {
        self.first.as_deref() == Some(b"t")
    }

    /// The first column as text.
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
        session.answer(|_| Ok(()))?;
        Ok(session)
    }

    /// The process that serves this session.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Runs SQL as it is, in the simple protocol.
    pub fn run(&mut self, sql: &str) -> Result<Answer> {
        frontend::query(sql, &mut self.outgoing)?;
        self.answer(|_| Ok(())).with_context(|| sql.to_owned())
    }

    /// The first column of all rows.
    pub fn column(&mut self, sql: &str) -> Result<Vec<String>> {
        let mut column = Vec::new();
        frontend::query(sql, &mut self.outgoing)?;
        self.answer(|row| {
            let first = first_column(row)?.context("an unexpected NULL")?;
            column.push(String::from_utf8(first.to_vec())?);
            Ok(())
        })
        .with_context(|| sql.to_owned())?;
        Ok(column)
    }

    /// The one value that a query gives.
    pub fn value<T>(&mut self, sql: &str) -> Result<T>
    where
        T: std::str::FromStr<Err: std::error::Error + Send + Sync + 'static>,
    {
        let answer = self.run(sql)?;
        let text = answer.text().with_context(|| format!("no value: {sql}"))?;
        text.parse().with_context(|| format!("{text} from {sql}"))
    }

    /// Keeps a statement for `execute`.
    pub fn prepare(&mut self, name: &str, sql: &str) -> Result<()> {
        frontend::parse(name, sql, [], &mut self.outgoing)?;
        frontend::sync(&mut self.outgoing);
        self.answer(|_| Ok(())).with_context(|| sql.to_owned())?;
        Ok(())
    }

    /// Runs a kept statement with its parameters as text, in one round trip.
    pub fn execute(&mut self, name: &str, parameters: &[&str]) -> Result<Answer> {
        self.execute_each(name, parameters, |_| Ok(()))
    }

    /// The same, and looks at every row.
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
            bail!("parameters that the protocol cannot carry");
        }
        frontend::execute("", 0, &mut self.outgoing)?;
        frontend::sync(&mut self.outgoing);
        self.answer(each).with_context(|| name.to_owned())
    }

    /// Runs a statement in a portal of this name.
    pub fn execute_in_portal(&mut self, portal: &str, sql: &str) -> Result<Answer> {
        self.send_statement(portal, sql)?;
        frontend::sync(&mut self.outgoing);
        self.answer(|_| Ok(())).with_context(|| sql.to_owned())
    }

    /// Sends statements as one pipeline: they run one after the other, up to a single Sync.
    pub fn pipeline(&mut self, statements: &[&str]) -> Result<Answer> {
        for sql in statements {
            self.send_statement("", sql)?;
        }
        frontend::sync(&mut self.outgoing);
        self.answer(|_| Ok(()))
            .with_context(|| statements.join("; "))
    }

    fn send_statement(&mut self, portal: &str, sql: &str) -> Result<()> {
        frontend::parse("", sql, [], &mut self.outgoing)?;
        let no_parameters = |(): (), _: &mut BytesMut| Ok(IsNull::No);
        if frontend::bind(portal, "", [], [], no_parameters, [0], &mut self.outgoing).is_err() {
            bail!("a bind message that the protocol cannot carry");
        }
        frontend::execute(portal, 0, &mut self.outgoing)?;
        Ok(())
    }

    /// Sends what is prepared and reads to the end of the answer.
    fn answer(&mut self, mut each: impl FnMut(&DataRowBody) -> Result<()>) -> Result<Answer> {
        self.stream.write_all(&self.outgoing)?;
        self.outgoing.clear();
        let mut answer = Answer::default();
        let mut error = None;
        let mut any = false;
        loop {
            match self.message()? {
                Message::DataRow(row) => {
                    if !any {
                        answer.first = first_column(&row)?;
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
                    answer.rows = count.unwrap_or(0);
                }
                Message::BackendKeyData(key) => self.pid = key.process_id(),
                Message::ErrorResponse(body) => error = Some(describe(body.fields())?),
                Message::ReadyForQuery(_) => break,
                _ => {}
            }
        }
        match error {
            Some(error) => bail!(error),
            None => Ok(answer),
        }
    }

    fn message(&mut self) -> Result<Message> {
        loop {
            if let Some(message) = Message::parse(&mut self.incoming)? {
                return Ok(message);
            }
            let read = self.stream.read(&mut self.chunk)?;
            if read == 0 {
                bail!("the server has closed the connection");
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
