//! The death of a consumer, at the worst moment.

use std::{fmt, sync::atomic::Ordering};

use anyhow::{Result, ensure};
use tokio::task::AbortHandle;

use super::{fate::Kill, session::Session, world::World};

/// What hangs over one delivery. Handlers say where they are, and it strikes or does not.
pub struct Hazard<'a> {
    kill: Option<Kill>,
    backend: i32,
    line: AbortHandle,
    world: &'a World,
}

/// The consumer died here; nothing after this point happened.
#[derive(Debug)]
pub struct Killed;

impl<'a> Hazard<'a> {
    /// The hazard of a delivery that is handled in this session.
    #[must_use]
    pub fn new(kill: Option<Kill>, session: &Session, world: &'a World) -> Self {
        Self {
            kill,
            backend: session.backend,
            line: session.line.clone(),
            world,
        }
    }

    /// Between the first and the last statement. Who is killed here finds the connection dead at
    /// the next statement.
    pub async fn mid_transaction(&self) -> Result<()> {
        match self.kill {
            Some(Kill::BackendTerminated) => {
                self.world.kills.fetch_add(1, Ordering::Relaxed);
                let executioner = Session::open(self.world).await?;
                // Waits until the backend is gone, 5 s at most. No row: it died with its server
                // meanwhile.
                let answer = executioner
                    .client
                    .query_opt(
                        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid = $1",
                        &[&self.backend],
                    )
                    .await?;
                let is_gone = answer
                    .map(|row| row.try_get(0))
                    .transpose()?
                    .unwrap_or(true);
                ensure!(is_gone, "backend {} does not go away", self.backend);
            }
            Some(Kill::ConnectionCut) => {
                self.world.kills.fetch_add(1, Ordering::Relaxed);
                self.line.abort();
            }
            Some(Kill::AfterCommit) | None => {}
        }
        Ok(())
    }

    /// After the commit, and before anyone was told.
    pub fn after_commit(&self) -> Result<(), Killed> {
        if self.kill == Some(Kill::AfterCommit) {
            self.world.kills.fetch_add(1, Ordering::Relaxed);
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
