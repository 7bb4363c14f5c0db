//! Kills a consumer at the points of its transaction where a kill does the most harm.

use std::{fmt, sync::atomic::Ordering};

use anyhow::{Result, ensure};
use tokio::task::AbortHandle;
use tokio_postgres::Transaction;

use super::{fate::Kill, session::Session, trial_state::TrialState};

/// The fault of one delivery. Handlers call the functions of this type at two points: in the
/// transaction, and after its commit. The fault happens at one of these points, which the seed
/// determines.
pub struct Hazard<'a> {
    kill: Option<Kill>,
    backend: i32,
    line: AbortHandle,
    state: &'a TrialState,
}

/// The error of a handler when its consumer was killed. The handler executed nothing after the
/// kill.
#[derive(Debug)]
pub struct Killed;

impl<'a> Hazard<'a> {
    /// Creates the hazard of a delivery that is handled in this session.
    #[must_use]
    pub fn new(kill: Option<Kill>, session: &Session, state: &'a TrialState) -> Self {
        Self {
            kill,
            backend: session.backend,
            line: session.line.clone(),
            state,
        }
    }

    /// Commits a transaction, with a fault before or after its commit.
    pub async fn commit(&self, tx: Transaction<'_>) -> Result<()> {
        self.mid_transaction().await?;
        tx.commit().await?;
        Ok(self.after_commit()?)
    }

    /// Executes a fault between the first and the last statement. When the consumer is killed here,
    /// its next statement fails because the connection is closed.
    pub async fn mid_transaction(&self) -> Result<()> {
        match self.kill {
            Some(Kill::BackendTerminated) => {
                self.state.kills.fetch_add(1, Ordering::Relaxed);
                let admin = Session::open(self.state).await?;
                // Waits up to 5 s for the end of the backend. If there is no row, the backend has
                // already ended, because its server was stopped.
                let row = admin
                    .client
                    .query_opt(
                        "SELECT pg_terminate_backend(pid, 5000)
                         FROM pg_stat_activity WHERE pid = $1",
                        &[&self.backend],
                    )
                    .await?;
                let is_gone = row.map(|row| row.try_get(0)).transpose()?.unwrap_or(true);
                ensure!(
                    is_gone,
                    "backend {} was not terminated within 5 s",
                    self.backend
                );
            }
            Some(Kill::ConnectionCut) => {
                self.state.kills.fetch_add(1, Ordering::Relaxed);
                self.line.abort();
            }
            Some(Kill::AfterCommit) | None => {}
        }
        Ok(())
    }

    /// Executes a fault after the commit, before the consumer publishes or acknowledges anything.
    pub fn after_commit(&self) -> Result<(), Killed> {
        if self.kill == Some(Kill::AfterCommit) {
            self.state.kills.fetch_add(1, Ordering::Relaxed);
            return Err(Killed);
        }
        Ok(())
    }
}

impl fmt::Display for Killed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the consumer was killed")
    }
}

impl std::error::Error for Killed {}
