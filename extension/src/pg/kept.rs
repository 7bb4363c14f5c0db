//! Tables that a transaction has written and keeps open, so that its next claim opens nothing.
//!
//! The tables belong to the transaction, so they are closed before it ends. Functions in a
//! savepoint do not use them: after an error there, nothing would close them. The tables are also
//! closed before each utility statement, because ALTER TABLE and DROP TABLE fail while a table is
//! open.

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
        if !has_room || kept.len() >= MOST {
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

fn watch() {
    if !IS_WATCHING.replace(true) {
        // SAFETY: this is called once in each backend; the function lives as long as the library,
        // which is never unloaded.
        unsafe { pg_sys::RegisterXactCallback(Some(on_transaction), std::ptr::null_mut()) };
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
        // PostgreSQL closes the tables of a transaction that it rolls back.
        XACT_EVENT_COMMIT | XACT_EVENT_PREPARE | XACT_EVENT_ABORT => {
            KEPT.with_borrow_mut(Vec::clear);
        }
        _ => {}
    }
}
