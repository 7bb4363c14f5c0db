//! Tables that a transaction has written and keeps open, so that its next claim opens nothing.
//!
//! An open table belongs to the resource owner of the present level of the transaction. So the kept
//! tables are closed before this level ends, and before a savepoint begins another one. When a level
//! is rolled back, PostgreSQL closes them itself. They are also closed before each utility
//! statement, because ALTER TABLE and DROP TABLE fail while a table is open.

use super::opened::Opened;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::cell::{Cell, RefCell};

/// The largest number of kept tables: a claim writes one or two.
const MOST: usize = 4;

thread_local! {
    static KEPT: RefCell<Vec<Opened>> = const { RefCell::new(Vec::new()) };
    static IS_WATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Returns the table, if it is kept. The caller must return it with [`keep`] or close it.
pub(super) fn take(table: pg_sys::Oid) -> Option<Opened> {
    KEPT.with_borrow_mut(|kept| {
        let found = kept.iter().position(|opened| opened.oid() == table);
        found.map(|found| kept.swap_remove(found))
    })
}

/// Keeps a table open. Returns it if it must be closed instead.
pub(super) fn keep(opened: Opened) -> Option<Opened> {
    watch();
    KEPT.with_borrow_mut(|kept| {
        let has_room = kept.capacity() > 0 || kept.try_reserve_exact(MOST).is_ok();
        if !has_room || kept.len() >= MOST || !opened.is_of_present_level() {
            return Some(opened);
        }
        kept.push(opened);
        None
    })
}

pub fn has_kept_tables() -> bool {
    KEPT.with_borrow(|kept| !kept.is_empty())
}

/// Closes the kept tables.
pub fn close_kept_tables() {
    while let Some(opened) = KEPT.with_borrow_mut(Vec::pop) {
        opened.close();
    }
}

/// Forgets the kept tables, because PostgreSQL closes or has closed them.
fn forget() {
    KEPT.with_borrow_mut(Vec::clear);
}

fn watch() {
    if !IS_WATCHING.replace(true) {
        // SAFETY: this is called once in each backend; the functions live as long as the library,
        // which is never unloaded.
        unsafe {
            pg_sys::RegisterXactCallback(Some(on_transaction), std::ptr::null_mut());
            pg_sys::RegisterSubXactCallback(Some(on_savepoint), std::ptr::null_mut());
        }
    }
}

// SAFETY: only PostgreSQL calls this function.
#[pg_guard]
unsafe extern "C-unwind" fn on_transaction(
    event: pg_sys::XactEvent::Type,
    _arg: *mut core::ffi::c_void,
) {
    use pg_sys::XactEvent::*;
    match event {
        XACT_EVENT_PRE_COMMIT | XACT_EVENT_PRE_PREPARE => close_kept_tables(),
        XACT_EVENT_COMMIT | XACT_EVENT_PREPARE | XACT_EVENT_ABORT => forget(),
        _ => {}
    }
}

// SAFETY: only PostgreSQL calls this function.
#[pg_guard]
unsafe extern "C-unwind" fn on_savepoint(
    event: pg_sys::SubXactEvent::Type,
    _savepoint: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _arg: *mut core::ffi::c_void,
) {
    use pg_sys::SubXactEvent::*;
    match event {
        SUBXACT_EVENT_START_SUB | SUBXACT_EVENT_PRE_COMMIT_SUB => close_kept_tables(),
        SUBXACT_EVENT_ABORT_SUB => forget(),
        _ => {}
    }
}
