//! Nothing is fetched while the database is away.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use backon::ExponentialBackoff;
use deadpool_postgres::Pool;
use tokio::time::{sleep, timeout};
use tokio_postgres::SimpleQueryMessage;

use super::intake::growing;
use crate::{Error, process::Loan, telemetry};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long a probe waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Closed by whoever meets a database that does not answer, opened by whoever asks and gets an answer.
pub(super) struct Gate {
    is_closed: AtomicBool,
    /// Goes on from one closing to the next until a message is processed: a database that answers probes and nothing else must
    /// not have its messages fetched and given back in a busy loop.
    pauses: Mutex<ExponentialBackoff>,
}

impl Gate {
    pub(super) fn new() -> Self {
        Self {
            is_closed: AtomicBool::new(false),
            pauses: Mutex::new(growing(FIRST_PAUSE, LONGEST_PAUSE)),
        }
    }

    pub(super) fn close(&self, error: &Error) {
        if !self.is_closed.swap(true, Ordering::AcqRel) {
            telemetry::database_is_away(true);
            tracing::warn!(%error, "the database does not serve: nothing is fetched until it does");
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// A message got through.
    pub(super) fn works(&self) {
        *self.pauses() = growing(FIRST_PAUSE, LONGEST_PAUSE);
    }

    /// Waits until the database serves again. Cancel safe; called by one at a time.
    pub(super) async fn pass(&self, pool: &Pool) {
        while self.is_closed() {
            let pause = self.pauses().next().unwrap_or(LONGEST_PAUSE);
            sleep(pause).await;
            match timeout(PATIENCE, serves(pool)).await {
                Ok(Ok(true)) => {
                    tracing::info!("the database serves again");
                    telemetry::database_is_away(false);
                    self.is_closed.store(false, Ordering::Release);
                }
                answer => tracing::debug!(?answer, "the database does not serve yet"),
            }
        }
    }

    fn pauses(&self) -> MutexGuard<'_, ExponentialBackoff> {
        self.pauses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether there is a server that takes writes. A connection to one that does not, or that does not answer, is closed.
async fn serves(pool: &Pool) -> Result<bool, Error> {
    let loan = Loan::new(pool.get().await?);
    let answers = loan.client().simple_query("SELECT pg_catalog.pg_is_in_recovery()").await?;
    let serves = answers
        .iter()
        .any(|answer| matches!(answer, SimpleQueryMessage::Row(row) if row.get(0) == Some("f")));
    if serves {
        loan.give_back();
    }
    Ok(serves)
}
