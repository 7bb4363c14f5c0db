//! The driver psql: each connection of a case is a process of psql, which gets the statements with
//! literals on its standard input.

use std::collections::BTreeMap;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use idem_spec::{Cell, Driver, Outcome, Refusal, Saved, with_literals};
use idem_testkit::Database;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

/// Separates the columns of a row. No result contains it.
const SEPARATOR: &str = "\u{1f}";
/// Stands for NULL. No result contains it.
const NULL: &str = "\u{1e}";
/// psql writes this line when it has executed a statement.
const END: &str = "\u{1d}";

/// The connections of a case to one database.
pub struct Psql<'a> {
    db: &'a Database,
    sessions: BTreeMap<String, Process>,
}

/// A process of psql. It is killed when the value is dropped.
struct Process {
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    errors: Lines<BufReader<ChildStderr>>,
}

impl<'a> Psql<'a> {
    /// Returns a driver without connections.
    #[must_use]
    pub fn new(db: &'a Database) -> Self {
        Self {
            db,
            sessions: BTreeMap::new(),
        }
    }
}

impl Driver for Psql<'_> {
    async fn execute(
        &mut self,
        session: &str,
        sql: &str,
        arguments: &[Value],
        saved: &Saved,
    ) -> Result<Outcome> {
        if !self.sessions.contains_key(session) {
            let process = Process::start(self.db)?;
            self.sessions.insert(session.to_owned(), process);
        }
        let sql = with_literals(sql, arguments, saved)?;
        let process = self.sessions.get_mut(session).context("no session")?;
        process.execute(&sql).await
    }

    async fn close(&mut self) -> Result<()> {
        self.sessions.clear();
        Ok(())
    }
}

impl Process {
    fn start(db: &Database) -> Result<Self> {
        let mut child = Command::from(db.cluster().command("psql")?)
            .args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"])
            .arg(format!("--field-separator={SEPARATOR}"))
            .arg(format!("--pset=null={NULL}"))
            // The SQLSTATE is a part of the verbose message.
            .arg("--set=VERBOSITY=verbose")
            .arg(db.name())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot run psql")?;
        Ok(Self {
            input: child.stdin.take().context("psql has no stdin")?,
            output: lines(child.stdout.take())?,
            errors: lines(child.stderr.take())?,
            _child: child,
        })
    }

    async fn execute(&mut self, sql: &str) -> Result<Outcome> {
        let input = format!("{sql};\n\\echo {END}\n\\warn {END}\n");
        self.input.write_all(input.as_bytes()).await?;
        // psql stops when a pipe is full, so both are read at the same time.
        let (rows, errors) =
            tokio::try_join!(until_end(&mut self.output), until_end(&mut self.errors))?;
        let Some(message) = after(&errors, "ERROR:  ") else {
            let cells = |row: &String| row.split(SEPARATOR).map(cell).collect();
            return Ok(Ok(rows.iter().map(cells).collect()));
        };
        let (sqlstate, message) = message
            .split_once(": ")
            .with_context(|| format!("an error without a SQLSTATE: {message}"))?;
        Ok(Err(Refusal {
            sqlstate: sqlstate.to_owned(),
            hint: after(&errors, "HINT:  ").unwrap_or_default().to_owned(),
            message: message.to_owned(),
        }))
    }
}

fn lines<T: AsyncRead>(pipe: Option<T>) -> Result<Lines<BufReader<T>>> {
    Ok(BufReader::new(pipe.context("psql has no output")?).lines())
}

/// Reads the lines before [`END`].
async fn until_end(lines: &mut Lines<BufReader<impl AsyncRead + Unpin>>) -> Result<Vec<String>> {
    let mut read = Vec::new();
    while let Some(line) = lines.next_line().await? {
        if line == END {
            return Ok(read);
        }
        read.push(line);
    }
    bail!("psql has ended: {read:?}")
}

/// Returns what follows `label` in the first line that has it.
fn after<'a>(lines: &'a [String], label: &str) -> Option<&'a str> {
    let mut found = lines.iter().filter_map(|line| line.split_once(label));
    found.next().map(|(_, rest)| rest)
}

fn cell(text: &str) -> Cell {
    match text {
        NULL => Cell::Null,
        text => Cell::Text(text.to_owned()),
    }
}
