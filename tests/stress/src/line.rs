//! Connections to a server that is killed at times.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio_postgres::{Client, Error, NoTls};

/// The longest time that the server may be unavailable. It is longer than a recovery on a busy
/// machine.
const UNAVAILABLE_FOR: Duration = Duration::from_secs(60);
/// The pause between two attempts to connect.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(20);

/// Connects as soon as the server accepts connections.
pub async fn connect(url: &str) -> Result<Client> {
    let deadline = Instant::now() + UNAVAILABLE_FOR;
    loop {
        match tokio_postgres::connect(url, NoTls).await {
            Ok((client, connection)) => {
                // The error of the connection is ignored here, because the next statement of the
                // client fails.
                tokio::spawn(async move {
                    let _ = connection.await;
                });
                return Ok(client);
            }
            Err(error) if is_kill(&error) && Instant::now() < deadline => {
                tokio::time::sleep(BETWEEN_ATTEMPTS).await
            }
            Err(error) => return Err(error).context("cannot connect"),
        }
    }
}

/// Returns whether the error is one of a killed session or of a server in recovery. Any other error
/// is a bug that the run has found.
pub fn is_kill(error: &Error) -> bool {
    match error.as_db_error() {
        // admin_shutdown, crash_shutdown, cannot_connect_now, too_many_connections (not all killed
        // sessions have ended)
        Some(db_error) => matches!(
            db_error.code().code(),
            "57P01" | "57P02" | "57P03" | "53300"
        ),
        None => true,
    }
}

/// Accepts an error that a kill explains. Returns any other error with its whole text.
pub fn expect_kill(error: Error) -> Result<()> {
    if is_kill(&error) {
        return Ok(());
    }
    match error.as_db_error() {
        Some(db_error) => bail!(
            "{}: {} {} {}",
            db_error.code().code(),
            db_error.message(),
            db_error.detail().unwrap_or_default(),
            db_error.hint().unwrap_or_default()
        ),
        None => Err(error.into()),
    }
}
