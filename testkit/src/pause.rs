//! Pause points of the extension for tests: see `extension/src/pause.rs`.

use anyhow::{Context, Result};

use super::database::Database;
use super::session::Session;
use super::until::until;

/// A pause point at which sessions wait. A session that was passed to [`Pause::arm`] waits at this
/// point until [`Pause::release`], or until this value is dropped.
pub struct Pause {
    holder: Session,
    name: String,
}

impl Pause {
    /// Makes sessions wait at the pause point `name` in a database.
    ///
    /// # Errors
    /// Fails when the server returns an error, or when the extension was built without pause
    /// points.
    pub async fn hold(db: &Database, name: &str) -> Result<Self> {
        let holder = db.connect().await?;
        holder
            .run("SELECT idem_health(); SHOW idem.pause_at")
            .await
            .context(
                "the extension was built without pause points: run `cargo xtask test races`",
            )?;
        holder.run(&locking("pg_advisory_lock", name)).await?;
        Ok(Self {
            holder,
            name: name.to_owned(),
        })
    }

    /// Makes a session pause at this point, and at no other point.
    pub async fn arm(&self, session: &Session) -> Result<()> {
        session
            .run(&format!("SET idem.pause_at = '{}'", self.name))
            .await
    }

    /// Waits until the backend is paused at the point.
    pub async fn until_reached(&self, pid: i32) -> Result<()> {
        let shown = format!("paused at {}", self.name);
        until(&format!("backend {pid} is {shown}"), async || {
            let row = self
                .holder
                .query_opt(
                    "SELECT 1 FROM pg_catalog.pg_stat_activity
                      WHERE pid = $1 AND application_name = $2",
                    &[&pid, &shown],
                )
                .await?;
            Ok(row.is_some())
        })
        .await
    }

    /// Releases the point. Sessions that wait there continue, and no other session pauses there.
    pub async fn release(self) -> Result<()> {
        self.release_all().await
    }

    /// Releases the point and keeps this value, so that its borrower can be used further.
    pub async fn release_all(&self) -> Result<()> {
        self.holder
            .run(&locking("pg_advisory_unlock", &self.name))
            .await
    }
}

fn locking(function: &str, name: &str) -> String {
    format!("SELECT {function}(hashtext('idem.pause'), hashtext('{name}'))")
}
