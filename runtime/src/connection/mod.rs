//! Connections that this crate takes from the user's pool, and the rules that protect a small pool
//! from starvation and deadlocks.
//!
//! - A connection is checked out for one *short statement*, or for a *handler*, which may use it
//!   for any time.
//! - A handler waits for a turn, so that all handlers together hold at most all connections but
//!   one. So a short statement (the renewal of a lease, a step of a relay, a read of the inbox)
//!   never waits for a handler, and a task that holds a connection for a handler can use a second
//!   connection for a short statement.
//! - A short statement takes no second connection while it holds one.
//! - Every wait for a connection has a limit. [`Error::Pool`] means that no connection was free in
//!   time. This is an error of the environment and uses up no attempt of a message.
//! - If the future that uses a connection is dropped, the connection is closed. Its statement is
//!   cancelled first, unless it may be a commit: see [`closing`].
//!
//! A pool of one connection cannot reserve a connection for short statements. A task that needs two
//! connections at once checks [`has_two`] before it begins.

mod cancel;
mod checkout;
mod closing;
mod link;
mod per_pool;
mod process_id;
mod sound;
mod turns;

use std::time::Duration;

use deadpool_postgres::{Object, Pool};
use tokio::time::timeout;

use crate::Error;

pub(crate) use checkout::{Checkout, on_connection};
pub(crate) use closing::closed;
pub(crate) use link::Link;
pub(crate) use sound::leaves_connection_sound;
pub use turns::Patience;

/// The longest wait for a connection of the pool. It is long, because the pool may try several
/// hosts. A pool can have shorter limits of its own; the limits of
/// [`PoolConfig`](crate::PoolConfig) are shorter.
pub(crate) const CHECKOUT_TIMEOUT: Duration = Duration::from_secs(60);

/// The longest time that a statement waits at the server for a new message of an inbox or for a
/// commit of effects.
const LONG_WAIT: Duration = Duration::from_secs(1);
/// The limit in place of [`LONG_WAIT`] while the pool has no other connection for short statements.
const SHORT_WAIT: Duration = Duration::from_millis(100);

async fn connection(pool: &Pool) -> Result<Object, Error> {
    match timeout(CHECKOUT_TIMEOUT, pool.get()).await {
        Ok(object) => Ok(object?),
        Err(_) => Err(Error::Pool(format!(
            "none was free within {CHECKOUT_TIMEOUT:?}"
        ))),
    }
}

/// The time limit of a short statement: see [`within`].
pub(crate) const STATEMENT: Duration = Duration::from_secs(60);
/// The shortest time limit of [`within`]. The limit of a statement under a lease is the lease,
/// which can be too short for a busy server.
const SHORTEST_STATEMENT: Duration = Duration::from_secs(5);

/// Runs a short statement with a time limit. Fails with [`Error::Pool`] if the server does not
/// respond in time, for example because another transaction holds a lock. The connection is then
/// closed, which cancels the statement if it waits for a lock.
pub(crate) async fn within<T, E: Into<Error>>(
    limit: Duration,
    statement: impl Future<Output = Result<T, E>>,
) -> Result<T, Error> {
    at_most(limit.max(SHORTEST_STATEMENT), statement).await
}

/// Like [`within`], with exactly this limit.
pub(crate) async fn at_most<T, E: Into<Error>>(
    limit: Duration,
    statement: impl Future<Output = Result<T, E>>,
) -> Result<T, Error> {
    match timeout(limit, statement).await {
        Ok(result) => result.map_err(Into::into),
        Err(_) => Err(Error::Pool(format!(
            "the database did not respond within {limit:?}"
        ))),
    }
}

/// Returns how long a statement on a connection of this pool may wait at the server for a new
/// message or a commit.
pub(crate) fn wait_at_server(pool: &Pool) -> Duration {
    let status = pool.status();
    match status.available > 0 || status.size < status.max_size {
        true => LONG_WAIT,
        false => SHORT_WAIT,
    }
}

/// Checks that the pool can provide two connections at once. If it cannot, the error names the
/// reason.
pub(crate) fn has_two(pool: &Pool, what: &str) -> Result<(), String> {
    match pool.status().max_size {
        size @ ..2 => Err(format!(
            "{what} needs two connections at once, and the pool has {size}"
        )),
        _ => Ok(()),
    }
}
