//! Values with one instance for each pool. All clones of a pool share its instance.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use deadpool_postgres::Pool;

/// One value for each pool. A value exists as long as a caller holds it. After that, the next use
/// creates a new value.
pub(super) struct PerPool<T> {
    values: Mutex<Option<Values<T>>>,
}

/// The values, by the address of the pool's manager, which all clones of a pool share, and by the
/// pool's size.
type Values<T> = HashMap<(usize, usize), Weak<T>>;

impl<T> PerPool<T> {
    pub(super) const fn new() -> Self {
        Self {
            values: Mutex::new(None),
        }
    }

    /// Returns the value of this pool at its present size.
    pub(super) fn of(&self, pool: &Pool, make: impl FnOnce(usize) -> T) -> Arc<T> {
        let max_size = pool.status().max_size;
        let key = (std::ptr::from_ref(pool.manager()) as usize, max_size);
        // Ignore poisoning, because no panic can leave the map half changed.
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        let values = values.get_or_insert_default();
        if let Some(known) = values.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        values.retain(|_, value| value.strong_count() > 0);
        let value = Arc::new(make(max_size));
        values.insert(key, Arc::downgrade(&value));
        value
    }
}
