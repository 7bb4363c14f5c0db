//! The turns of handlers: one connection of each pool is set aside for short statements.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use deadpool_postgres::Pool;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::{PATIENCE, closing::address_of};
use crate::Error;

/// A turn of a handler. It ends when it is dropped.
pub(super) type Turn = OwnedSemaphorePermit;

struct Turns {
    max_size: usize,
    free: Weak<Semaphore>,
}

/// By the address of the pool's manager. A turn, and a wait for one, keeps the semaphore alive: once
/// it is gone, all turns are free.
static TURNS: Mutex<Option<HashMap<usize, Turns>>> = Mutex::new(None);

/// Waits for a turn, as long as the pool lets its users wait.
pub(super) async fn turn(pool: &Pool) -> Result<Turn, Error> {
    let patience = pool.timeouts().wait.unwrap_or(PATIENCE).min(PATIENCE);
    let free = turns_of(pool);
    match timeout(patience, Arc::clone(&free).acquire_owned()).await {
        Ok(Ok(turn)) => Ok(turn),
        // The semaphore is never closed.
        Ok(Err(_)) => Err(Error::Pool("the pool is closed".into())),
        Err(_) => Err(Error::Pool(format!(
            "none was free for a handler within {patience:?}: {} of {} serve handlers",
            free_for_handlers(pool.status().max_size),
            pool.status().max_size
        ))),
    }
}

/// All connections but one. A pool of one has its only one for everything.
fn free_for_handlers(max_size: usize) -> usize {
    max_size.saturating_sub(1).clamp(1, Semaphore::MAX_PERMITS)
}

fn turns_of(pool: &Pool) -> Arc<Semaphore> {
    let address = address_of(pool);
    let max_size = pool.status().max_size;
    // No change of the map can panic half-way.
    let mut turns = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    let turns = turns.get_or_insert_default();
    let known = turns.get(&address).filter(|turns| turns.max_size == max_size);
    if let Some(free) = known.and_then(|turns| turns.free.upgrade()) {
        return free;
    }
    turns.retain(|_, turns| turns.free.strong_count() > 0);
    let free = Arc::new(Semaphore::new(free_for_handlers(max_size)));
    let of_pool = Turns {
        max_size,
        free: Arc::downgrade(&free),
    };
    turns.insert(address, of_pool);
    free
}
