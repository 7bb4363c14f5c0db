//! The list of a fence: the transactions that can still use the state before a step. The SQL
//! function `idem.fence` stores the list and checks it.

use super::version::check_version;
use crate::errors::{Error, Result};
use crate::pg::{Locker, lockers_of};
use crate::transaction_end::{End, Watcher, watch_transactions};
use pgrx::prelude::*;
use std::cell::Cell;

thread_local! {
    /// Whether this transaction has changed the state that claims use.
    static PUBLISHED: Cell<bool> = const { Cell::new(false) };
}

/// Lists the transactions that are in the rings (that hold the lock of `ring::enter`), or that
/// write to another relation. For the rings, first call [`not_in_the_transaction_that_published`].
pub fn lockers(relation: pg_sys::Oid) -> Result<Vec<Locker>> {
    check_version()?;
    Ok(lockers_of(relation))
}

/// Fails with 25001 in the transaction that published a step. The invalidation is sent when that
/// transaction commits: until then other transactions begin to claim with the old state, and a
/// fence that is created now would not list them.
pub fn not_in_the_transaction_that_published() -> Result<()> {
    if !PUBLISHED.get() {
        return Ok(());
    }
    Err(Error::FenceInSameTransaction)
}

/// Notes the end of the transaction: its invalidations were sent or discarded.
fn transaction_ended(_: End) {
    PUBLISHED.set(false);
}

/// Makes every backend read this table's state again at its next claim. The invalidation is sent
/// when the transaction commits.
pub fn invalidate(relation: pg_sys::Oid) {
    watch_transactions(Watcher::Fence, transaction_ended);
    PUBLISHED.set(true);
    // SAFETY: relation_open raises an error unless the OID is that of a relation.
    unsafe {
        let rel = pg_sys::relation_open(relation, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        pg_sys::CacheInvalidateRelcache(rel);
        pg_sys::relation_close(rel, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
    }
}

/// Like [`invalidate`], but does not wait for the commit.
pub fn invalidate_at_once(relation: pg_sys::Oid) {
    let message = pg_sys::SharedInvalRelcacheMsg {
        id: pg_sys::SHAREDINVALRELCACHE_ID as i8,
        // SAFETY: reads a variable of the backend.
        dbId: unsafe { pg_sys::MyDatabaseId },
        relId: relation,
    };
    let message = pg_sys::SharedInvalidationMessage { rc: message };
    // SAFETY: the function copies one message.
    unsafe { pg_sys::SendSharedInvalidMessages(&raw const message, 1) };
}
