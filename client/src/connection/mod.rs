//! Connections that this crate takes from the user's pool, and the rule that keeps a small pool
//! from starving or locking itself.
//!
//! - A connection is on loan for one *short statement*, or for a *handler*, which takes as long as
//!   it likes.
//! - Handlers take turns: at most all connections but one are on loan to them. So a short statement
//!   (a lease that is renewed, a step of a relay, a look into the inbox) never waits for a handler,
//!   and whatever holds a connection for a handler can use a second one for a short statement.
//! - A short statement takes no second connection while it has one.
//! - No wait for a connection is without a limit: [`Error::Pool`] says that none was free in time.
//!   It is the environment's, and uses up no attempt.
//! - A connection whose user is gone, because its future was dropped, is closed. Its statement is
//!   cancelled before, unless it may be a commit: see [`closing`].
//!
//! A pool of one has nothing to set aside: what needs two connections at once asks
//! [`has_two`] before it begins.

mod cancel;
mod closing;
mod loan;
mod per_pool;
mod turns;

use std::time::Duration;

use deadpool_postgres::{Object, Pool};
use tokio::time::timeout;

use crate::Error;

pub(crate) use closing::closed;
pub(crate) use loan::Loan;
pub(crate) use turns::Patience;

/// How long a pool may take to give a connection: it may try several hosts. A pool can have shorter
/// limits of its own, and those of [`PoolConfig`](crate::PoolConfig) are.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How long a statement waits at the server for news, at most.
const LONG_WAIT: Duration = Duration::from_secs(1);
/// The same while the pool has no other connection for short statements.
const SHORT_WAIT: Duration = Duration::from_millis(100);

async fn connection(pool: &Pool) -> Result<Object, Error> {
    match timeout(PATIENCE, pool.get()).await {
        Ok(object) => Ok(object?),
        Err(_) => Err(Error::Pool(format!("none was free within {PATIENCE:?}"))),
    }
}

/// How long a short statement may take: see [`within`].
pub(crate) const STATEMENT: Duration = Duration::from_secs(60);
/// A statement under a lease is of no use after the lease, but a busy server may be slow.
const SHORTEST_STATEMENT: Duration = Duration::from_secs(5);

/// Gives up a short statement without a response, because the server is silent or a lock is held.
/// Its connection is not sound then, and is closed. That cancels the statement while it waits for a
/// lock.
pub(crate) async fn within<T>(
    limit: Duration,
    statement: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    at_most(limit.max(SHORTEST_STATEMENT), statement).await
}

/// The same with exactly this limit.
pub(crate) async fn at_most<T>(
    limit: Duration,
    statement: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    timeout(limit, statement).await.unwrap_or_else(|_| {
        Err(Error::Pool(format!(
            "the database did not respond within {limit:?}"
        )))
    })
}

/// How long a statement may wait at the server for news, on a connection of this pool.
pub(crate) fn wait_at_server(pool: &Pool) -> Duration {
    let status = pool.status();
    match status.available > 0 || status.size < status.max_size {
        true => LONG_WAIT,
        false => SHORT_WAIT,
    }
}

/// Whether the pool can give two connections at once; the reason if it cannot.
pub(crate) fn has_two(pool: &Pool, what: &str) -> Result<(), String> {
    match pool.status().max_size {
        size @ ..2 => Err(format!(
            "{what} needs two connections at once, and the pool has {size}"
        )),
        _ => Ok(()),
    }
}
