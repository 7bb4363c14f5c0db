//! Forbids COMMIT in the current transaction.
//!
//! A program that runs foreign code in its transaction, for example the handler of a message, wants
//! to be the only one that commits. Otherwise the foreign code can commit the claim of a message
//! and then fail: the next delivery is a duplicate, and the message is lost.
//!
//! The statements COMMIT and PREPARE TRANSACTION fail before they do anything, and the transaction
//! is then a failed one. So foreign tables do not commit either, and a program that ignores the
//! error gets 25P02 from each later statement. Any other way to commit fails in a callback.
//!
//! The state belongs to the transaction as a whole. ROLLBACK TO SAVEPOINT does not change it.

use crate::errors::{Error, Result};
use crate::shared::ensure_preloaded;
use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::cell::Cell;
use std::ffi::{c_char, c_void};

thread_local! {
    static IS_FORBIDDEN: Cell<bool> = const { Cell::new(false) };
    static IS_WATCHING: Cell<bool> = const { Cell::new(false) };
    /// The hook of another extension, which the hook of this module calls.
    static OTHER_HOOK: Cell<pg_sys::ProcessUtility_hook_type> = const { Cell::new(None) };
}

/// From now on COMMIT and PREPARE TRANSACTION fail in this transaction.
pub fn forbid() -> Result<()> {
    ensure_preloaded()?;
    // SAFETY: reads the state of the transaction.
    if !unsafe { pg_sys::IsTransactionBlock() } {
        return Err(Error::NoTransactionBlock {
            function: c"idem_forbid_commit()",
        });
    }
    if !IS_WATCHING.get() {
        watch();
    }
    IS_FORBIDDEN.set(true);
    Ok(())
}

/// Allows COMMIT again. Fails if COMMIT is not forbidden: in most cases the transaction in which it
/// was forbidden has ended.
pub fn allow() -> Result<()> {
    ensure_preloaded()?;
    match IS_FORBIDDEN.replace(false) {
        true => Ok(()),
        false => Err(Error::CommitNotForbidden),
    }
}

/// Watches the statements and the transactions of this backend from now on.
fn watch() {
    // SAFETY: this succeeds once in each backend; both functions live as long as the library, which
    // is never unloaded. The hook is set last, because the registration can fail.
    unsafe {
        pg_sys::RegisterXactCallback(Some(on_event), std::ptr::null_mut());
        OTHER_HOOK.set(pg_sys::ProcessUtility_hook);
        pg_sys::ProcessUtility_hook = Some(on_utility);
    }
    IS_WATCHING.set(true);
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

/// Fails for the statements COMMIT and PREPARE TRANSACTION while COMMIT is forbidden.
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
        if IS_FORBIDDEN.get() && commits(statement) {
            reject();
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

/// Returns whether the statement would commit. COMMIT of a failed transaction is a rollback.
///
/// # Safety
/// The pointer is a planned statement.
unsafe fn commits(statement: *const pg_sys::PlannedStmt) -> bool {
    use pg_sys::TransactionStmtKind::*;
    // SAFETY: guaranteed by the caller; the node is cast by its tag.
    unsafe {
        let node = (*statement).utilityStmt;
        !node.is_null()
            && (*node).type_ == pg_sys::NodeTag::T_TransactionStmt
            && matches!(
                (*node.cast::<pg_sys::TransactionStmt>()).kind,
                TRANS_STMT_COMMIT | TRANS_STMT_PREPARE
            )
            && !pg_sys::IsAbortedTransactionBlockState()
    }
}

/// # Safety
/// Only PostgreSQL calls this function.
#[pg_guard]
unsafe extern "C-unwind" fn on_event(event: pg_sys::XactEvent::Type, _arg: *mut c_void) {
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

/// # Safety
/// No Rust frame with a destructor is below this function, up to the next one of PostgreSQL.
#[pg_guard]
unsafe extern "C-unwind" fn reject() {
    ErrorReport::from(Error::CommitForbidden).report(PgLogLevel::ERROR);
}
