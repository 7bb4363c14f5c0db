//! The claims that the open transaction has made, so that its later functions need not look them up
//! again.
//!
//! The list may lack a claim: it has a limit, and a rollback to a savepoint empties it, because the
//! claims and the effects of the savepoint are gone. A claim that is not in the list is looked up.

use crate::identity::Identity;
use crate::ring::ring_table;
use crate::transaction_end::{Watcher, watch_transactions};
use idem_core::Key;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::cell::{Cell, RefCell};

/// The largest number of claims in the list. It is searched from its end.
const MOST: usize = 256;

struct OwnClaim {
    /// The table of the rings: another one after the extension was created again.
    ring: pg_sys::Oid,
    key: Key,
    is_text: bool,
    destination: i32,
    claimed_at: pg_sys::TimestampTz,
    /// The ordinal of the next effect.
    next_ordinal: i32,
}

impl OwnClaim {
    fn is_of(&self, ring: pg_sys::Oid, identity: &Identity) -> bool {
        self.ring == ring
            && self.key == identity.id.key
            && self.is_text == identity.id.text.is_some()
            && self.destination == identity.destination.id
    }
}

thread_local! {
    static CLAIMS: RefCell<Vec<OwnClaim>> = const { RefCell::new(Vec::new()) };
    static IS_WATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Adds a claim that this transaction has just made, and that has no effects.
pub fn add(identity: &Identity, claimed_at: pg_sys::TimestampTz) {
    watch();
    let Ok(ring) = ring_table() else {
        return;
    };
    CLAIMS.with_borrow_mut(|claims| {
        // Without memory the list lacks the claim.
        let has_room = claims.capacity() > 0 || claims.try_reserve_exact(MOST).is_ok();
        if has_room && claims.len() < MOST {
            claims.push(OwnClaim {
                ring,
                key: identity.id.key,
                is_text: identity.id.text.is_some(),
                destination: identity.destination.id,
                claimed_at,
                next_ordinal: 0,
            });
        }
    });
}

/// Returns the time of a claim in the list.
pub fn claimed_at(identity: &Identity) -> Option<pg_sys::TimestampTz> {
    with(identity, |claim| claim.claimed_at)
}

/// Returns the ordinal of the next effect of a claim in the list.
pub fn next_ordinal(identity: &Identity) -> Option<i32> {
    with(identity, |claim| claim.next_ordinal)
}

/// Sets the ordinal of the next effect of a claim, if it is in the list.
pub fn set_next_ordinal(identity: &Identity, next: i32) {
    with(identity, |claim| claim.next_ordinal = next);
}

fn with<T>(identity: &Identity, read: impl FnOnce(&mut OwnClaim) -> T) -> Option<T> {
    let ring = ring_table().ok()?;
    CLAIMS.with_borrow_mut(|claims| {
        let mut claims = claims.iter_mut().rev();
        claims.find(|claim| claim.is_of(ring, identity)).map(read)
    })
}

fn clear() {
    CLAIMS.with_borrow_mut(Vec::clear);
}

fn watch() {
    watch_transactions(Watcher::Claims, |_| clear());
    if !IS_WATCHING.get() {
        // SAFETY: this succeeds once in each backend; the callback lives as long as the library,
        // which is never unloaded.
        unsafe { pg_sys::RegisterSubXactCallback(Some(on_savepoint), std::ptr::null_mut()) };
        IS_WATCHING.set(true);
    }
}

// SAFETY: PostgreSQL calls this function. It only reads the event, which is a number.
#[pg_guard]
unsafe extern "C-unwind" fn on_savepoint(
    event: pg_sys::SubXactEvent::Type,
    _savepoint: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _arg: *mut core::ffi::c_void,
) {
    if event == pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB {
        clear();
    }
}
