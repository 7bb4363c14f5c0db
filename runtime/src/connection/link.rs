//! Whether the connections of a pool lead to the server itself.
//!
//! `tokio-postgres` names its prepared statements `s0`, `s1` and so on, in each process. A pooler
//! that can give another server process to each transaction, and that does not keep statements
//! apart, then executes the statement that another client has prepared under the same name. This is
//! not always an error. So statements are prepared only on a connection without a pooler: there,
//! the process that executes the statements has the process id that was reported when the
//! connection began.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use deadpool_postgres::Pool;

/// What this process knows about the connections of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Link {
    #[default]
    Unknown,
    /// The last connection had no pooler.
    Direct,
    /// A connection had a pooler, or lost its prepared statements in another way.
    Pooled,
}

/// What is known, by the address of the pool's manager, which all clones of a pool share. The weak
/// reference prevents that another pool gets the address of one that was dropped.
static LINKS: Mutex<Option<HashMap<usize, (WeakPool, Link)>>> = Mutex::new(None);

type WeakPool = deadpool::managed::WeakPool<deadpool_postgres::Manager>;

impl Link {
    pub(crate) fn of(pool: &Pool) -> Self {
        with(pool, |link| *link)
    }

    /// Notes what a connection of the pool has shown.
    pub(crate) fn note(pool: &Pool, found: Link) {
        let before = with(pool, |link| std::mem::replace(link, found));
        if found == Self::Pooled && before != found {
            tracing::info!(
                "a pooler is between this process and the database, or its connections lose their \
                 prepared statements, so idem prepares none: if the pooler keeps them (PgBouncer \
                 1.21 or later with max_prepared_statements), \
                 IdemBuilder::prepared_statements(true) saves time"
            );
        }
    }
}

fn with<T>(pool: &Pool, use_link: impl FnOnce(&mut Link) -> T) -> T {
    // Ignore poisoning, because no panic can leave the map half changed.
    let mut links = LINKS.lock().unwrap_or_else(PoisonError::into_inner);
    let address = std::ptr::from_ref(pool.manager()) as usize;
    let links = links.get_or_insert_default();
    if !links.contains_key(&address) {
        links.retain(|_, (known, _)| known.upgrade().is_some());
    }
    let (_, link) = links
        .entry(address)
        .or_insert_with(|| (pool.weak(), Link::default()));
    use_link(link)
}
