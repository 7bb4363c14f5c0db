//! Reads the number of partitions of a relay and detects changes. While processes serve a relay, an
//! administrator can drop it and create it again with another number of partitions in one
//! transaction.

use std::time::Duration;

use deadpool_postgres::Pool;
use idem_client::relay;
use idem_client::{ErrorKind, preflight::relay_preflight};
use tokio::time::sleep;
use tracing::info;

use super::{
    errors::{is_final, is_gone},
    reporter::Reporter,
    settings::AWAY,
};
use crate::{
    Error,
    backoff::Backoff,
    connection::{STATEMENT, on_connection},
};

/// Why the process no longer serves the partitions of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// A shutdown was requested.
    Requested,
    /// The relay was dropped or has another number of partitions. The caller reads the number
    /// again.
    Recreated,
}

/// Waits until the database has everything that a relay needs, and returns the number of
/// partitions.
pub(super) async fn partitions(
    pool: &Pool,
    relay: &str,
    reporter: &Reporter,
) -> Result<i32, Error> {
    let mut away = Backoff::new(AWAY.0, AWAY.1);
    loop {
        match reporter.step(checked_count(pool, relay).await) {
            Err(error) if !is_final(&error) => sleep(away.next()).await,
            result => return result,
        }
    }
}

async fn checked_count(pool: &Pool, relay: &str) -> Result<i32, Error> {
    on_connection(pool, STATEMENT, async |client| {
        relay_preflight(&**client).await?;
        relay::partitions(&**client, relay).await
    })
    .await
}

async fn count(pool: &Pool, relay: &str) -> Result<i32, Error> {
    on_connection(pool, STATEMENT, async |client| {
        relay::partitions(&**client, relay).await
    })
    .await
}

/// The number of partitions that a process serves.
pub(super) struct Counted<'a> {
    pub(super) pool: &'a Pool,
    pub(super) relay: &'a str,
    pub(super) partitions: i32,
}

impl Counted<'_> {
    /// Completes when the relay has another number of partitions. Errors are ignored here, because
    /// the statements of the partitions meet and log the same errors.
    pub(super) async fn changes(&self, interval: Duration) {
        loop {
            sleep(interval).await;
            if let Ok(now) = count(self.pool, self.relay).await
                && now != self.partitions
            {
                let (relay, before) = (self.relay, self.partitions);
                info!(
                    relay,
                    before, now, "the relay was created again with another number of partitions"
                );
                return;
            }
        }
    }

    /// Returns why the partitions ended. `failed` is the error that ended them, if there was an
    /// error. Only a permanent error is returned as an error.
    pub(super) async fn ended(
        &self,
        failed: Option<Error>,
        is_requested: bool,
    ) -> Result<Ended, Error> {
        let ended = if is_requested {
            Ended::Requested
        } else {
            Ended::Recreated
        };
        match failed {
            None => Ok(ended),
            Some(error) if is_gone(&error) || self.is_of_other_partitions(&error).await => {
                Ok(ended)
            }
            Some(error) => Err(error),
        }
    }

    /// Returns whether an error shows that the number of partitions has changed. The server reports
    /// a partition that no longer exists as an argument out of range.
    async fn is_of_other_partitions(&self, error: &Error) -> bool {
        if error.kind() != ErrorKind::Invalid || error.sqlstate().is_none() {
            return false;
        }
        match count(self.pool, self.relay).await {
            Ok(now) => now != self.partitions,
            // The number cannot be read now, so treat the error as a change. The next attempt to
            // read the number waits for the database, and a permanent error then occurs again.
            Err(_) => true,
        }
    }
}
