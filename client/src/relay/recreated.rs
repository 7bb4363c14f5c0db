//! The number of partitions of a relay, and its changes: an administrator can drop a relay and
//! create it again with another number, in one transaction, while processes serve it.

use std::time::Duration;

use deadpool_postgres::Pool;
use tokio::time::sleep;
use tracing::info;

use super::{
    notes::Notes,
    pauses::Pauses,
    relay_partitions,
    runtime::AWAY,
    steps::{is_final, is_gone},
};
use crate::{
    Error, ErrorKind,
    connection::{Loan, STATEMENT, within},
    relay_preflight,
};

/// Why the partitions of a relay have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The shutdown was requested.
    Requested,
    /// The relay is gone, or has another number of partitions. The number has to be read again.
    Recreated,
}

/// How many partitions the relay has, as soon as the database has all that a relay needs.
pub(super) async fn partitions(pool: &Pool, relay: &str, notes: &Notes) -> Result<i32, Error> {
    let mut away = Pauses::new(AWAY.0, AWAY.1);
    loop {
        match notes.step(checked_count(pool, relay).await) {
            Err(error) if !is_final(&error) => sleep(away.next()).await,
            asked => return asked,
        }
    }
}

async fn checked_count(pool: &Pool, relay: &str) -> Result<i32, Error> {
    let loan = Loan::take(pool).await?;
    let partitions = async {
        relay_preflight(&**loan.client()).await?;
        relay_partitions(&**loan.client(), relay).await
    };
    let partitions = within(STATEMENT, partitions).await;
    loan.end(partitions)
}

async fn count(pool: &Pool, relay: &str) -> Result<i32, Error> {
    let loan = Loan::take(pool).await?;
    let partitions = within(STATEMENT, relay_partitions(&**loan.client(), relay)).await;
    loan.end(partitions)
}

/// The number of partitions that a process serves.
pub(super) struct Counted<'a> {
    pub(super) pool: &'a Pool,
    pub(super) relay: &'a str,
    pub(super) partitions: i32,
}

impl Counted<'_> {
    /// Completes when the relay has another number of partitions. What fails here fails in a step
    /// of a partition too, which notes it.
    pub(super) async fn changes(&self, interval: Duration) {
        loop {
            sleep(interval).await;
            if let Ok(now) = count(self.pool, self.relay).await
                && now != self.partitions
            {
                let (relay, before) = (self.relay, self.partitions);
                info!(
                    relay,
                    before, now, "the relay was created again with other partitions"
                );
                return;
            }
        }
    }

    /// Why the partitions ended, after they failed with this error or with none. The error is
    /// final.
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

    /// A partition that the relay no longer has fails like an argument out of its range.
    async fn is_of_other_partitions(&self, error: &Error) -> bool {
        if error.kind() != ErrorKind::Invalid || error.sqlstate().is_none() {
            return false;
        }
        match count(self.pool, self.relay).await {
            Ok(now) => now != self.partitions,
            // Not known now. The next count waits for the database, and the error comes again.
            Err(_) => true,
        }
    }
}
