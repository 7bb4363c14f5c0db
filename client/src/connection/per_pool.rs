//! What each pool has once in a process.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use deadpool_postgres::Pool;
use tokio::sync::Semaphore;

/// A semaphore for each pool. A permit, and a wait for one, keeps it alive. The next one after it has
/// all its permits, and is open, should this one have been closed.
pub(super) struct PerPool {
    semaphores: Mutex<Option<Semaphores>>,
}

/// By the address of the pool's manager, which all clones of a pool share, and its size.
type Semaphores = HashMap<(usize, usize), Weak<Semaphore>>;

impl PerPool {
    pub(super) const fn new() -> Self {
        Self {
            semaphores: Mutex::new(None),
        }
    }

    /// The one of this pool, of this size; made with so many permits.
    pub(super) fn of(&self, pool: &Pool, permits: impl FnOnce(usize) -> usize) -> Arc<Semaphore> {
        let max_size = pool.status().max_size;
        let key = (std::ptr::from_ref(pool.manager()) as usize, max_size);
        // No change of the map can panic half-way.
        let mut semaphores = self.semaphores.lock().unwrap_or_else(PoisonError::into_inner);
        let semaphores = semaphores.get_or_insert_default();
        if let Some(known) = semaphores.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        semaphores.retain(|_, semaphore| semaphore.strong_count() > 0);
        let semaphore = Arc::new(Semaphore::new(permits(max_size)));
        semaphores.insert(key, Arc::downgrade(&semaphore));
        semaphore
    }
}
