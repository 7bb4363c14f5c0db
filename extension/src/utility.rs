//! The hook on utility statements: all statements but SELECT, INSERT, UPDATE, DELETE and MERGE.

use crate::commit_guard::{check_commit, commits};
use crate::pg;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::cell::Cell;
use std::ffi::c_char;

thread_local! {
    /// The hook of another extension, which this hook calls.
    static OTHER_HOOK: Cell<pg_sys::ProcessUtility_hook_type> = const { Cell::new(None) };
}

/// Sets the hook for all processes of the server: a marked COMMIT can reach any of them.
pub fn init() {
    // SAFETY: the library is being preloaded, so this is called once. The function lives as long as
    // the library, which is never unloaded.
    unsafe {
        OTHER_HOOK.set(pg_sys::ProcessUtility_hook);
        pg_sys::ProcessUtility_hook = Some(on_utility);
    }
}

// SAFETY: this is the declaration of tcop/utility.h.
unsafe extern "C-unwind" {
    /// The function of PostgreSQL, without the boundary of pgrx.
    fn standard_ProcessUtility(
        statement: *mut pg_sys::PlannedStmt,
        query: *const c_char,
        is_read_only_tree: bool,
        context: pg_sys::ProcessUtilityContext::Type,
        parameters: pg_sys::ParamListInfo,
        environment: *mut pg_sys::QueryEnvironment,
        destination: *mut pg_sys::DestReceiver,
        completion: *mut pg_sys::QueryCompletion,
    );
}

/// Checks each COMMIT and PREPARE TRANSACTION, and closes the tables that the transaction keeps
/// open.
///
/// An error of a statement jumps over this function. That is allowed, because the function has no
/// value with a destructor. Without a boundary of pgrx the error keeps its position and context.
///
/// # Safety
/// Only PostgreSQL calls this function.
unsafe extern "C-unwind" fn on_utility(
    statement: *mut pg_sys::PlannedStmt,
    query: *const c_char,
    is_read_only_tree: bool,
    context: pg_sys::ProcessUtilityContext::Type,
    parameters: pg_sys::ParamListInfo,
    environment: *mut pg_sys::QueryEnvironment,
    destination: *mut pg_sys::DestReceiver,
    completion: *mut pg_sys::QueryCompletion,
) {
    // SAFETY: the arguments are passed on unchanged. Another hook lives as long as its library.
    unsafe {
        if commits(statement) {
            check_commit(statement, query);
        }
        if pg::has_kept_tables() {
            close_kept_tables();
        }
        let next = OTHER_HOOK.get().unwrap_or(standard_ProcessUtility);
        next(
            statement,
            query,
            is_read_only_tree,
            context,
            parameters,
            environment,
            destination,
            completion,
        );
    }
}

/// No Rust frame with a destructor is below this function, as for [`check_commit`].
#[pg_guard]
extern "C-unwind" fn close_kept_tables() {
    pg::close_kept_tables();
}
