//! The fence of a rotation step. A fence has passed when no transaction can still use the state
//! before the step.

use super::cache::ring_table;
use super::version::check_version;
use crate::pg::{Lockers, sleep_ms};
use crate::settings;
use crate::transaction_end::{End, Watcher, watch_transactions};
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::{Duration, Instant};

thread_local! {
    /// The fence of the last step of each ring. A fence keeps its list of transactions from the
    /// first check of the step. If each check read a new list, the list might never become empty
    /// while there are many long transactions. A fence that has passed is kept, so that the next
    /// check of the same step returns true at once.
    static FENCES: RefCell<HashMap<FenceName, Fence>> = RefCell::default();
    /// Whether this transaction has changed the state that claims use.
    static PUBLISHED: Cell<bool> = const { Cell::new(false) };
}

/// The OID of the table `idem.ring`, and what rotates: a ring or `payloads`. The OID is needed
/// because the names of steps repeat after the extension was dropped and created again.
type FenceName = (pg_sys::Oid, String);

struct Fence {
    /// The name of the published step.
    step: String,
    /// The transactions that have not ended; empty if the fence has passed.
    lockers: Lockers,
}

/// Returns true when all transactions have ended that were in the rings (that held the lock of
/// `ring::enter`) at the first check of this step. Fails with 25001 in the transaction that
/// published a step.
///
/// `step` names the published step and is different for each step; its first word names what
/// rotates, a ring or `payloads`. If `wait` is true, the function waits for at most
/// `idem.fence_wait`.
pub fn pass_fence(step: &str, wait: bool) -> Result<bool, ErrorReport> {
    not_in_the_transaction_that_published()?;
    check_version()?;
    let table = ring_table()?;
    let deadline = wait.then(|| {
        Instant::now() + Duration::from_millis(settings::FENCE_WAIT_MS.get().max(0) as u64)
    });
    while !has_passed(table, step) {
        if deadline.is_none_or(|deadline| Instant::now() >= deadline) {
            return Ok(false);
        }
        sleep_ms(5);
    }
    Ok(true)
}

/// Checks the fence of a step and creates it at the first check. The fence is stored between
/// checks, so that a cancelled wait can be continued.
fn has_passed(table: pg_sys::Oid, step: &str) -> bool {
    let rotates = step.split(' ').next().unwrap_or_default().to_owned();
    FENCES.with_borrow_mut(|fences| {
        fences.retain(|(other, _), _| *other == table);
        let new = || Fence {
            step: step.to_owned(),
            lockers: Lockers::of(table),
        };
        let fence = fences.entry((table, rotates)).or_insert_with(new);
        if fence.step != step {
            *fence = new();
        }
        fence.lockers.have_ended()
    })
}

/// Fails with 25001 in the transaction that published a step. The invalidation is sent when that
/// transaction commits: until then other transactions begin to claim with the old state, and a
/// fence that is created now would not list them.
pub fn not_in_the_transaction_that_published() -> Result<(), ErrorReport> {
    if !PUBLISHED.get() {
        return Ok(());
    }
    Err(ErrorReport::new(
        PgSqlErrorCode::ERRCODE_ACTIVE_SQL_TRANSACTION,
        "cannot pass the fence in the transaction that published a step",
        "idem",
    )
    .set_hint("Run each step of a rotation in its own transaction: CALL idem_maintain()."))
}

/// Notes the end of the transaction: its invalidations were sent or discarded.
fn transaction_ended(_: End) {
    PUBLISHED.set(false);
}

/// Returns whether a rotation waits at its fence in this backend. Another maintainer may have
/// completed the step meanwhile; then the result is true until the listed transactions have ended.
/// The list is kept, because a pass can miss its fence when another maintainer holds the lock of
/// the step.
pub fn fences_pending() -> bool {
    FENCES.with_borrow(|fences| fences.values().any(|fence| !fence.lockers.is_empty()))
}

/// Returns whether a fence that this backend waits for has passed. Must be called in a transaction.
pub fn fence_passed() -> bool {
    FENCES.with_borrow_mut(|fences| {
        fences
            .values_mut()
            .any(|fence| !fence.lockers.is_empty() && fence.lockers.have_ended())
    })
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
