//! The database connection of a consumer, which can be broken and opened again.

use std::time::Duration;

use anyhow::{Context, Result};
use idem_client::ErrorKind;
use tokio::{task::AbortHandle, time::Instant};
use tokio_postgres::{Client, NoTls};

use super::trial_state::TrialState;
use idem_bench::search_path;

/// The longest time that a server may be down, for a restart during a run.
const SERVER_MAY_BE_AWAY: Duration = Duration::from_secs(60);

/// The pause between two attempts to connect.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(50);

/// A connection, with the handles that are needed to break it.
pub struct Session {
    /// The connection.
    pub client: Client,
    /// The process id of its backend.
    pub backend: i32,
    /// The task of the connection. Aborting it closes the connection without a Terminate message.
    pub line: AbortHandle,
}

impl Session {
    /// Connects to the database of the trial. Waits up to 60 s for a server that is restarting.
    ///
    /// Returns an error when the server is not up by then, or when it rejects the connection.
    pub async fn open(state: &TrialState) -> Result<Self> {
        let deadline = Instant::now() + SERVER_MAY_BE_AWAY;
        loop {
            match Self::connect(state).await {
                Ok(session) => return Ok(session),
                Err(error)
                    if error.kind() == ErrorKind::ConnectionLost && Instant::now() < deadline =>
                {
                    tokio::time::sleep(BETWEEN_ATTEMPTS).await;
                }
                Err(error) => return Err(error).context("cannot connect to the database"),
            }
        }
    }

    async fn connect(state: &TrialState) -> Result<Self, idem_client::Error> {
        let (client, connection) = tokio_postgres::connect(&state.database_url, NoTls).await?;
        // When the connection ends with an error, the next statement of the client returns the
        // error.
        let line = tokio::spawn(async move {
            let _ = connection.await;
        })
        .abort_handle();
        search_path::put_first(&client, &state.schema).await?;
        let row = client.query_one("SELECT pg_backend_pid()", &[]).await?;
        Ok(Self {
            backend: row.try_get(0)?,
            client,
            line,
        })
    }
}
