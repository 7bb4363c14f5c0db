//! A connection that records the notices of the server.

use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use idem_cluster::Cluster;
use tokio_postgres::error::DbError;
use tokio_postgres::{AsyncMessage, Client, Error, NoTls, SimpleQueryMessage};

use super::prioritize;

/// A session that is closed when it is dropped. It is a [`Client`] with shorter functions for
/// tests.
pub struct Session {
    client: Client,
    notices: Arc<Mutex<Vec<Refusal>>>,
}

/// An error or a notice of the server, with the parts that a user can act on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// `ERROR`, `NOTICE`, `DEBUG` and so on.
    pub severity: String,
    /// The SQLSTATE, five characters.
    pub sqlstate: String,
    /// The primary message, one line.
    pub message: String,
    /// The detail, empty when there is none.
    pub detail: String,
    /// The hint, empty when there is none.
    pub hint: String,
}

/// The settings that the sessions of tests change:
/// - `statement_timeout`: a statement that would wait forever fails, and does not block the tests.
/// - `idem.lone_claims`: many tests run a claim function without other work in its transaction,
///   which fails by default. A separate test checks the default, and the examples of the
///   documentation run with the default.
const SETTINGS: &str = "-c statement_timeout=120s -c idem.lone_claims=allow";

impl Session {
    /// Connects to a database of the cluster, with the settings that tests change.
    pub async fn connect(cluster: &Cluster, database: &str, role: &str) -> Result<Self> {
        Self::connect_with(cluster, database, role, SETTINGS).await
    }

    /// Connects as superuser `postgres`, with the settings that tests change.
    pub async fn superuser(cluster: &Cluster, database: &str) -> Result<Self> {
        Self::connect(cluster, database, "postgres").await
    }

    /// Creates an empty database, and connects to it as superuser.
    pub async fn in_empty_database(cluster: &Cluster, database: &str) -> Result<Self> {
        // CREATE DATABASE fails while a session is connected to the template. No session can
        // connect to template0.
        let create = format!("CREATE DATABASE \"{database}\" TEMPLATE template0");
        Self::superuser(cluster, "postgres")
            .await?
            .run(&create)
            .await?;
        Self::superuser(cluster, database).await
    }

    /// Creates a database with the extension, and connects to it as superuser.
    pub async fn in_database_with_idem(cluster: &Cluster, database: &str) -> Result<Self> {
        let session = Self::in_empty_database(cluster, database).await?;
        session.run("CREATE EXTENSION idem").await?;
        Ok(session)
    }

    /// Connects with these settings only. `settings` has the form of command line options of the
    /// server.
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
        let notices = Arc::new(Mutex::new(Vec::new()));
        let recorder = Arc::clone(&notices);
        tokio::spawn(async move {
            // An error ends the connection and this loop. The next statement of the client fails.
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notice(notice) = message {
                    recorder
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(Refusal::from(&notice));
                }
            }
        });
        Ok(Self { client, notices })
    }

    /// Runs statements and ignores their results. Several statements in one text are one
    /// transaction.
    pub async fn run(&self, sql: &str) -> Result<()> {
        self.client
            .batch_execute(sql)
            .await
            .map_err(explained)
            .with_context(|| sql.to_owned())
    }

    /// Runs statements and returns their rows as lines, with the columns separated by `|`, as psql
    /// -A prints them. NULL is printed as `NULL`.
    pub async fn text(&self, sql: &str) -> Result<String> {
        let results = self
            .client
            .simple_query(sql)
            .await
            .map_err(explained)
            .with_context(|| sql.to_owned())?;
        let mut lines = Vec::new();
        for result in results {
            if let SimpleQueryMessage::Row(row) = result {
                let columns: Vec<_> = (0..row.len())
                    .map(|n| row.get(n).unwrap_or("NULL"))
                    .collect();
                lines.push(columns.join("|"));
            }
        }
        Ok(lines.join("\n"))
    }

    /// Runs a statement that must fail, and returns its error.
    ///
    /// # Errors
    /// Fails when the statement succeeds, or when the connection is lost.
    pub async fn refused(&self, sql: &str) -> Result<Refusal> {
        match self.client.simple_query(sql).await {
            Ok(_) => bail!("this statement must fail, but succeeded: {sql}"),
            Err(error) => match error.as_db_error() {
                Some(refusal) => Ok(Refusal::from(refusal)),
                None => Err(error).with_context(|| sql.to_owned()),
            },
        }
    }

    /// Returns the process id of the backend that serves this session.
    pub async fn pid(&self) -> Result<i32> {
        Ok(self
            .client
            .query_one("SELECT pg_catalog.pg_backend_pid()", &[])
            .await?
            .get(0))
    }

    /// Raises the priority of the backend of this session: see [`prioritize`]. Prints a warning
    /// where this is not possible.
    pub async fn prioritize(&self) -> Result<()> {
        let pid = self.pid().await?;
        if !prioritize(pid) {
            eprintln!(
                "cannot raise the priority of process {pid}: \
                 waits for it can be waits for the processor"
            );
        }
        Ok(())
    }

    /// Returns the notices since the last use of this function, of every severity.
    /// (`client_min_messages` decides which notices the server sends.)
    #[must_use]
    pub fn notices(&self) -> Vec<Refusal> {
        std::mem::take(&mut self.notices.lock().unwrap_or_else(PoisonError::into_inner))
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

/// Returns an error with all parts of the server's error, because the client library prints only
/// "db error".
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
