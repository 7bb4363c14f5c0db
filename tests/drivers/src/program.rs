//! A driver that runs as a program of another language.

use std::process::Stdio;

use anyhow::{Context, Result, bail};
use idem_spec::{Cell, Driver, Outcome, Refusal, Saved, plain_of};
use idem_testkit::Database;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// A running program. It reads requests from its standard input, and writes one reply for each of
/// them. The program is killed when the value is dropped.
pub struct Program {
    _child: Child,
    requests: ChildStdin,
    replies: Lines<BufReader<ChildStdout>>,
}

/// The reply to a statement.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Reply {
    Rows(Vec<Vec<Value>>),
    Error(ServerError),
}

#[derive(Deserialize)]
struct ServerError {
    sqlstate: Option<String>,
    hint: Option<String>,
    message: String,
}

impl Program {
    /// Starts a program, which connects to the database as superuser.
    ///
    /// # Errors
    /// Fails when the program cannot be executed.
    pub fn start(mut command: std::process::Command, db: &Database) -> Result<Self> {
        let what = format!("{command:?}");
        db.cluster().set_server_of(&mut command);
        let mut child = Command::from(command)
            .env("PGPORT", "5432")
            .env("PGDATABASE", db.name())
            // Requests contain other letters than those of ASCII.
            .env("LC_ALL", "C.UTF-8")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot run {what}"))?;
        let requests = child.stdin.take().context("the program has no stdin")?;
        let replies = child.stdout.take().context("the program has no stdout")?;
        Ok(Self {
            _child: child,
            requests,
            replies: BufReader::new(replies).lines(),
        })
    }

    async fn exchange(&mut self, request: &Value) -> Result<Value> {
        let line = format!("{request}\n");
        self.requests.write_all(line.as_bytes()).await?;
        let reply = self.replies.next_line().await?;
        let reply = reply.context("the program has ended; its error is above")?;
        serde_json::from_str(&reply).with_context(|| format!("not a reply: {reply}"))
    }
}

impl Driver for Program {
    async fn execute(
        &mut self,
        session: &str,
        sql: &str,
        arguments: &[Value],
        saved: &Saved,
    ) -> Result<Outcome> {
        let arguments: Vec<_> = arguments
            .iter()
            .map(|argument| plain_of(argument, saved))
            .collect::<Result<_>>()?;
        let request = json!({"session": session, "sql": sql, "arguments": arguments});
        let reply = self.exchange(&request).await?;
        Ok(match serde_json::from_value(reply)? {
            Reply::Rows(rows) => Ok(rows
                .into_iter()
                .map(|row| row.into_iter().map(Cell::from).collect())
                .collect()),
            Reply::Error(error) => Err(Refusal {
                sqlstate: error.sqlstate.unwrap_or_default(),
                hint: error.hint.unwrap_or_default(),
                message: error.message,
            }),
        })
    }

    async fn close(&mut self) -> Result<()> {
        match self.exchange(&json!({"close": true})).await? {
            Value::Object(reply) if reply.is_empty() => Ok(()),
            reply => bail!("unexpected reply: {reply}"),
        }
    }
}
