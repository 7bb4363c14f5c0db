//! A connection that remembers what the server told it besides its answers.

use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use idem_cluster::Cluster;
use tokio_postgres::error::DbError;
use tokio_postgres::{AsyncMessage, Client, Error, NoTls, SimpleQueryMessage};

use super::prioritize;

/// A session, closed when dropped. It is a [`Client`] with a few shorter ways to ask.
pub struct Session {
    client: Client,
    told: Arc<Mutex<Vec<Refusal>>>,
}

/// An error of the server, or a notice: what a user can act on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// `ERROR`, `NOTICE`, `DEBUG`...
    pub severity: String,
    /// Five characters.
    pub sqlstate: String,
    /// One line.
    pub message: String,
    /// Empty when there is none.
    pub detail: String,
    /// Empty when there is none.
    pub hint: String,
}

/// What the sessions of tests change:
/// - `statement_timeout`: a statement that nothing wakes fails and does not keep the tests waiting.
/// - `idem.lone_claims`: the tests look at one call at a time. That a lone claim fails by default
///   is a test of its own, and the examples of the documentation run with the default.
const SETTINGS: &str = "-c statement_timeout=120s -c idem.lone_claims=allow";

impl Session {
    /// Connects to a database of the cluster, with the settings that tests change.
    ///
    /// # Errors
    /// When the server does not let the role in.
    pub async fn connect(cluster: &Cluster, database: &str, role: &str) -> Result<Self> {
        Self::connect_with(cluster, database, role, SETTINGS).await
    }

    /// Connects with these settings, written as options of the server's command line, and no
    /// others.
    ///
    /// # Errors
    /// When the server does not let the role in.
    pub async fn connect_with(
        cluster: &Cluster,
        database: &str,
        role: &str,
        settings: &str,
    ) -> Result<Self> {
        let config = format!(
            "host={} user={role} dbname={database} application_name=test options='{settings}'",
            cluster.socket_dir().display()
        );
        let (client, mut connection) = tokio_postgres::connect(&config, NoTls)
            .await
            .with_context(|| format!("cannot connect to {database} as {role}"))?;
        let told = Arc::new(Mutex::new(Vec::new()));
        let ear = Arc::clone(&told);
        tokio::spawn(async move {
            // An error here is the end of the connection: whoever asks next gets it.
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notice(notice) = message {
                    ear.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(Refusal::from(&notice));
                }
            }
        });
        Ok(Self { client, told })
    }

    /// Runs statements for what they do. Several in one text are one transaction.
    ///
    /// # Errors
    /// The first error, with its SQLSTATE.
    pub async fn run(&self, sql: &str) -> Result<()> {
        self.client
            .batch_execute(sql)
            .await
            .map_err(explained)
            .with_context(|| sql.to_owned())
    }

    /// What statements answer: rows as lines, columns separated by `|`, as psql -A prints them;
    /// NULL is `NULL`.
    ///
    /// # Errors
    /// The first error, with its SQLSTATE.
    pub async fn text(&self, sql: &str) -> Result<String> {
        let answers = self
            .client
            .simple_query(sql)
            .await
            .map_err(explained)
            .with_context(|| sql.to_owned())?;
        let mut lines = Vec::new();
        for answer in answers {
            if let SimpleQueryMessage::Row(row) = answer {
                let columns: Vec<_> = (0..row.len())
                    .map(|n| row.get(n).unwrap_or("NULL"))
                    .collect();
                lines.push(columns.join("|"));
            }
        }
        Ok(lines.join("\n"))
    }

    /// The error with which the server refuses this.
    ///
    /// # Errors
    /// When it does not refuse, or the connection is lost.
    pub async fn refused(&self, sql: &str) -> Result<Refusal> {
        match self.client.simple_query(sql).await {
            Ok(_) => bail!("this was not refused: {sql}"),
            Err(error) => match error.as_db_error() {
                Some(refusal) => Ok(Refusal::from(refusal)),
                None => Err(error).with_context(|| sql.to_owned()),
            },
        }
    }

    /// The process that serves this session.
    ///
    /// # Errors
    /// When the connection is lost.
    pub async fn pid(&self) -> Result<i32> {
        Ok(self
            .client
            .query_one("SELECT pg_catalog.pg_backend_pid()", &[])
            .await?
            .get(0))
    }

    /// Raises the priority of the server's process of this session: see [`prioritize`]. Where that
    /// is not possible the function prints a warning.
    ///
    /// # Errors
    /// When the connection is lost.
    pub async fn prioritize(&self) -> Result<()> {
        let pid = self.pid().await?;
        if !prioritize(pid) {
            eprintln!("process {pid} has no priority: waits for it can be waits for the processor");
        }
        Ok(())
    }

    /// The notices since the last call, whatever their severity (`client_min_messages` decides what
    /// is sent).
    #[must_use]
    pub fn notices(&self) -> Vec<Refusal> {
        std::mem::take(&mut self.told.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Deref for Session {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}

impl From<&DbError> for Refusal {
    fn from(error: &DbError) -> Self {
        Self {
            severity: error.severity().to_owned(),
            sqlstate: error.code().code().to_owned(),
            message: error.message().to_owned(),
            detail: error.detail().unwrap_or_default().to_owned(),
            hint: error.hint().unwrap_or_default().to_owned(),
        }
    }
}

/// The client's own message for a server's error is only "db error".
fn explained(error: Error) -> anyhow::Error {
    match error.as_db_error().map(Refusal::from) {
        Some(r) => anyhow::anyhow!(
            "{} {}: {} {} {}",
            r.severity,
            r.sqlstate,
            r.message,
            r.detail,
            r.hint
        ),
        None => error.into(),
    }
}
