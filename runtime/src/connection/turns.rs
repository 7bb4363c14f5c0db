//! Limits the number of handlers that use connections of a pool at the same time. A handler waits
//! for its turn, so that one connection of each pool stays free for short statements.

use std::{sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::{CHECKOUT_TIMEOUT, per_pool::PerPool};
use crate::Error;

/// How long to wait for a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Patience {
    /// Waits for other handlers, which may take any time, for at most ten minutes. Used for a
    /// message of a broker, because no client waits for a response.
    OfHandlers,
    /// Waits for at most the time limit of the pool. Used for an HTTP request, because a client
    /// waits for its response.
    OfPool,
}

/// The turn of a handler. It ends when this value is dropped.
pub(super) type Turn = OwnedSemaphorePermit;

/// The semaphore of each pool. It exists as long as a handler has a permit or waits for a permit.
static TURNS: PerPool<Semaphore> = PerPool::new();

/// How long a handler waits for earlier handlers, which may take any time. The limit of the pool
/// would be too short: a consumer with as many handlers as connections would treat the wait for
/// busy handlers as a failure of the database.
const TURN: Duration = Duration::from_secs(600);

/// Waits for a turn. Returns `None` for a pool of one connection, which cannot reserve a
/// connection. There the pool's own queue orders the handlers.
pub(super) async fn turn(pool: &Pool, patience: Patience) -> Result<Option<Turn>, Error> {
    if pool.status().max_size < 2 {
        return Ok(None);
    }
    let patience = match patience {
        Patience::OfHandlers => TURN,
        Patience::OfPool => pool
            .timeouts()
            .wait
            .unwrap_or(CHECKOUT_TIMEOUT)
            .min(CHECKOUT_TIMEOUT),
    };
    let free = TURNS.of(pool, |max_size| Semaphore::new(free_for_handlers(max_size)));
    match timeout(patience, Arc::clone(&free).acquire_owned()).await {
        Ok(Ok(turn)) => Ok(Some(turn)),
        // The semaphore is never closed.
        Ok(Err(_)) => Err(Error::Pool("the pool is closed".into())),
        Err(_) => Err(Error::Pool(format!(
            "none was free for a handler within {patience:?}: {} of {} serve handlers",
            free_for_handlers(pool.status().max_size),
            pool.status().max_size
        ))),
    }
}

/// Returns the number of connections for handlers: all but one.
fn free_for_handlers(max_size: usize) -> usize {
    max_size.saturating_sub(1).clamp(1, Semaphore::MAX_PERMITS)
}
