//! Cancels the statement that another connection executes.
//!
//! The pool's manager opens another connection, which executes `pg_cancel_backend`. The cancel
//! request of the PostgreSQL protocol is not used, for two reasons. `tokio-postgres` closes the
//! socket of such a request at once, and PgBouncer 1.18 and 1.19 then exit with a fatal error. The
//! request also needs the TLS settings, which a pool that the user has built does not expose.

use std::time::{Duration, Instant};

use deadpool::managed::Manager as _;
use deadpool_postgres::{ClientWrapper, Object, Pool};
use tokio_postgres::SimpleQueryMessage;

use super::process_id::process_id;
use crate::Error;

/// The longest duration of a login. A backend starts before the login, so it can be older than its
/// connection by up to this time.
const LOGIN: Duration = Duration::from_secs(15);
/// The largest relative difference between the clock speeds of this machine and of the server.
const DRIFT: f64 = 0.001;

/// The backend that serves a connection.
#[derive(Clone, Copy)]
pub(super) struct Backend {
    /// The process id that the server reported; `None` if the driver does not show it.
    process_id: Option<i32>,
    connected: Instant,
    /// Whether the server has begun a transaction and no COMMIT was sent. If false, the running
    /// statement may commit.
    cannot_commit: bool,
}

impl Backend {
    pub(super) fn of(object: &Object, cannot_commit: bool) -> Self {
        Self {
            process_id: process_id(object),
            connected: Object::metrics(object).created,
            cannot_commit,
        }
    }
}

/// The result of a request to cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CancelResult {
    /// The statement is cancelled, unless the backend was between two statements.
    Statement,
    /// The statement may commit and does not wait for a lock, so it was not cancelled.
    Commit,
    /// The canceller's server has no such backend: it has ended, or belongs to another server.
    Nothing,
    /// The connection leads to a pooler, so the backend cannot be found by its process id.
    Pooler,
}

/// A connection that cancels statements. It is not part of the pool, because all connections of the
/// pool may be in use.
pub(super) struct Canceller {
    pool: Pool,
    client: ClientWrapper,
}

impl Canceller {
    pub(super) async fn connect(pool: &Pool) -> Result<Self, Error> {
        let client = pool.manager().create().await?;
        Ok(Self {
            pool: pool.clone(),
            client,
        })
    }

    /// Cancels the statement that this backend executes. If the pool has several hosts, the
    /// canceller may be connected to another server, where another backend can have the same
    /// process id. So the start time of the backend is compared too.
    ///
    /// A commit may wait for its synchronous standby. If the commit is cancelled during this wait,
    /// it becomes visible although a promotion of the standby can still lose it. Until the
    /// promotion, a redelivery of its message would be acknowledged as a duplicate, and the message
    /// would be lost. So a statement that may commit is cancelled only while it waits for a lock,
    /// which happens before its commit.
    pub(super) async fn cancel(&self, backend: Backend) -> Result<CancelResult, Error> {
        // A pooler gives its clients process ids of its own, which are not those of the backends.
        // The first query below detects this.
        let (Some(own), Some(other)) = (process_id(&self.client), backend.process_id) else {
            return Ok(CancelResult::Pooler);
        };
        let age = backend.connected.elapsed().as_secs_f64();
        let tolerance = LOGIN.as_secs_f64() + DRIFT * age;
        let cannot_commit = backend.cannot_commit;
        // `pg_cancel_backend` needs the login role of the other connection. This connection has the
        // same login role, but its default role can differ, so use the login role.
        let sql = format!(
            "SET LOCAL ROLE NONE; SET LOCAL search_path = pg_catalog; \
             SELECT pg_backend_pid() = {own}; \
             SELECT CASE WHEN {cannot_commit} OR wait_event_type = 'Lock' \
                         THEN pg_cancel_backend(pid) ELSE false END \
             FROM pg_stat_get_activity({other}) \
             WHERE pg_backend_pid() = {own} \
               AND abs(extract(epoch FROM clock_timestamp() - backend_start) - {age}) < {tolerance}"
        );
        let messages = self.client.simple_query(&sql).await?;
        let mut values = messages.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row.get(0)),
            _ => None,
        });
        Ok(match (values.next().flatten(), values.next().flatten()) {
            (Some("t"), Some("t")) => CancelResult::Statement,
            (Some("t"), Some(_)) => CancelResult::Commit,
            (Some("t"), None) => CancelResult::Nothing,
            _ => CancelResult::Pooler,
        })
    }
}

impl Drop for Canceller {
    fn drop(&mut self) {
        self.pool.manager().detach(&mut self.client);
    }
}
