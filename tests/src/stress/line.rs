//! Connections to a server that is killed now and then.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio_postgres::{Client, Error, NoTls};

/// Longer than a recovery takes on a busy machine.
const SERVER_MAY_BE_AWAY: Duration = Duration::from_secs(60);
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(20);

/// Connects as soon as the server lets anybody in.
pub async fn connect(url: &str) -> Result<Client> {
    let deadline = Instant::now() + SERVER_MAY_BE_AWAY;
    loop {
        match tokio_postgres::connect(url, NoTls).await {
            Ok((client, connection)) => {
                // How a connection ends is seen by whoever uses its client.
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

/// Whether this is what a killed session, or a server in recovery, says. Anything else is a
/// finding.
pub fn is_kill(error: &Error) -> bool {
    match error.as_db_error() {
        // admin_shutdown, crash_shutdown, cannot_connect_now, too_many_connections (the killed have
        // not all gone)
        Some(refusal) => matches!(refusal.code().code(), "57P01" | "57P02" | "57P03" | "53300"),
        None => true,
    }
}

/// An error that is a kill, as a value; any other goes up with its whole text.
pub fn expect_kill(error: Error) -> Result<()> {
    if is_kill(&error) {
        return Ok(());
    }
    match error.as_db_error() {
        Some(refusal) => bail!(
            "{}: {} {} {}",
            refusal.code().code(),
            refusal.message(),
            refusal.detail().unwrap_or_default(),
            refusal.hint().unwrap_or_default()
        ),
        None => Err(error.into()),
    }
}
