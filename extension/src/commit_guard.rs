//! Forbids COMMIT in the current transaction.
//!
//! A program that runs foreign code in its transaction, for example the handler of a message, wants
//! to be the only one that commits. Otherwise the foreign code can commit the claim of a message
//! and then fail: the next delivery is a duplicate, and the message is lost.
//!
//! The state belongs to the transaction as a whole. ROLLBACK TO SAVEPOINT does not change it.

use crate::errors::{Error, Result};
use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::cell::Cell;

thread_local! {
    static IS_FORBIDDEN: Cell<bool> = const { Cell::new(false) };
    static IS_WATCHING: Cell<bool> = const { Cell::new(false) };
}

/// From now on COMMIT and PREPARE TRANSACTION fail in this transaction.
pub fn forbid() -> Result<()> {
    // SAFETY: reads the state of the transaction.
    if !unsafe { pg_sys::IsTransactionBlock() } {
        return Err(Error::NoTransactionBlock {
            function: c"idem_forbid_commit()",
        });
    }
    if !IS_WATCHING.replace(true) {
        // SAFETY: this is called once in each backend; the callback lives as long as the library,
        // which is never unloaded.
        unsafe { pg_sys::RegisterXactCallback(Some(on_event), std::ptr::null_mut()) };
    }
    IS_FORBIDDEN.set(true);
    Ok(())
}

/// Allows COMMIT again. Fails if COMMIT is not forbidden: then the transaction in which it was
/// forbidden has ended.
pub fn allow() -> Result<()> {
    match IS_FORBIDDEN.replace(false) {
        true => Ok(()),
        false => Err(Error::CommitNotForbidden),
    }
}

/// # Safety
/// Only PostgreSQL calls this function.
#[pg_guard]
unsafe extern "C-unwind" fn on_event(event: pg_sys::XactEvent::Type, _arg: *mut core::ffi::c_void) {
    use pg_sys::XactEvent::*;
    match event {
        // An error here rolls the transaction back.
        XACT_EVENT_PRE_COMMIT | XACT_EVENT_PRE_PREPARE if IS_FORBIDDEN.get() => {
            ErrorReport::from(Error::CommitForbidden).report(PgLogLevel::ERROR);
        }
        XACT_EVENT_COMMIT | XACT_EVENT_ABORT | XACT_EVENT_PREPARE => IS_FORBIDDEN.set(false),
        _ => {}
    }
}
