//! Calls functions at the end of each transaction of this backend.

use pgrx::pg_sys;
use pgrx::prelude::*;
use std::cell::Cell;

/// How a transaction has ended in this backend.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    Committed,
    /// The transaction was rolled back or prepared.
    NotCommitted,
}

/// The modules that watch the end of transactions, in the order in which they are called.
#[derive(Clone, Copy)]
pub enum Watcher {
    Counters,
    Waiters,
    Fence,
    Rings,
    Claims,
}

const WATCHERS: usize = 5;

type Hook = fn(End);

thread_local! {
    static HOOKS: Cell<[Option<Hook>; WATCHERS]> = const { Cell::new([None; WATCHERS]) };
}

/// Calls `hook` at the end of this and each later transaction of this backend. Only the first call
/// of a watcher has an effect.
pub fn watch_transactions(watcher: Watcher, hook: Hook) {
    let mut hooks = HOOKS.get();
    if hooks[watcher as usize].is_some() {
        return;
    }
    if hooks.iter().all(Option::is_none) {
        // SAFETY: this is called once in each backend; the callback lives as long as the library,
        // which is never unloaded.
        unsafe { pg_sys::RegisterXactCallback(Some(on_transaction_end), std::ptr::null_mut()) };
    }
    hooks[watcher as usize] = Some(hook);
    HOOKS.set(hooks);
}

#[pg_guard]
unsafe extern "C-unwind" fn on_transaction_end(
    event: pg_sys::XactEvent::Type,
    _arg: *mut core::ffi::c_void,
) {
    use pg_sys::XactEvent::*;
    let end = match event {
        XACT_EVENT_COMMIT => End::Committed,
        XACT_EVENT_ABORT | XACT_EVENT_PREPARE => End::NotCommitted,
        _ => return,
    };
    for hook in HOOKS.get().into_iter().flatten() {
        hook(end);
    }
}
