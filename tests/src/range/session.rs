//! A consumer's connection, which can break and be made anew.

use std::time::Duration;

use anyhow::{Context, Result};
use idem_client::ErrorKind;
use tokio::{task::AbortHandle, time::Instant};
use tokio_postgres::{Client, NoTls};

use super::world::World;

/// How long a server may be away, for a restart in the middle of a run.
const SERVER_MAY_BE_AWAY: Duration = Duration::from_secs(60);

/// How long to let a server be between two attempts to reach it.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(50);

/// A connection together with what it takes to kill it.
pub struct Session {
    /// The connection.
    pub client: Client,
    /// The backend that serves it.
    pub backend: i32,
    /// Aborting this breaks the connection without a goodbye.
    pub line: AbortHandle,
}

impl Session {
    /// Connects to where the trial is played; waits for a server that is restarting.
    pub async fn open(world: &World) -> Result<Self> {
        let deadline = Instant::now() + SERVER_MAY_BE_AWAY;
        loop {
            match Self::connect(world).await {
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

    async fn connect(world: &World) -> Result<Self, idem_client::Error> {
        let (client, connection) = tokio_postgres::connect(&world.database_url, NoTls).await?;
        // How a connection ends is seen by whoever uses its client.
        let line = tokio::spawn(async move {
            let _ = connection.await;
        })
        .abort_handle();
        // The tables of the trial come first; the functions of idem are found where they were
        // before.
        let row = client
            .query_one(
                "SELECT pg_backend_pid(), \
                 set_config('search_path', $1 || ', ' || current_setting('search_path'), false)",
                &[&world.schema],
            )
            .await?;
        Ok(Self {
            backend: row.try_get(0)?,
            client,
            line,
        })
    }
}
