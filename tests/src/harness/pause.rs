//! Pause points of the extension, as tests use them: see `extension/src/pause.rs`.

use anyhow::{Context, Result};

use super::database::Database;
use super::session::Session;
use super::until::until;

/// A held pause point: sessions that opted in wait there until [`Pause::release`]. Dropping it
/// releases the point too.
pub struct Pause {
    holder: Session,
    name: String,
}

impl Pause {
    /// Takes the point of that name in a database.
    ///
    /// # Errors
    /// When the server refuses, or the extension was built without pause points.
    pub async fn hold(db: &Database, name: &str) -> Result<Self> {
        let holder = db.connect().await?;
        holder
            .run("SELECT idem_health(); SHOW idem.pause_at")
            .await
            .context("this extension has no pause points: run `cargo xtask test races`")?;
        holder.run(&locking("pg_advisory_lock", name)).await?;
        Ok(Self {
            holder,
            name: name.to_owned(),
        })
    }

    /// Makes a session stop at this point, and at no other.
    ///
    /// # Errors
    /// When the connection is lost.
    pub async fn arm(&self, session: &Session) -> Result<()> {
        session
            .run(&format!("SET idem.pause_at = '{}'", self.name))
            .await
    }

    /// Waits until that backend stands at the point.
    ///
    /// # Errors
    /// When it does not arrive before the deadline.
    pub async fn until_reached(&self, pid: i32) -> Result<()> {
        let shown = format!("paused at {}", self.name);
        until(&format!("backend {pid} is {shown}"), async || {
            let row = self
                .holder
                .query_opt(
                    "SELECT 1 FROM pg_catalog.pg_stat_activity WHERE pid = $1 AND application_name = $2",
                    &[&pid, &shown],
                )
                .await?;
            Ok(row.is_some())
        })
        .await
    }

    /// Lets the sessions at this point go on, and stops no other there.
    ///
    /// # Errors
    /// When the connection is lost.
    pub async fn release(self) -> Result<()> {
        self.holder
            .run(&locking("pg_advisory_unlock", &self.name))
            .await
    }
}

fn locking(function: &str, name: &str) -> String {
    format!("SELECT {function}(hashtext('idem.pause'), hashtext('{name}'))")
}
