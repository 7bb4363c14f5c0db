//! Lets only one program commit the current transaction.
//!
//! A program that runs foreign code in its transaction, for example the handler of a message, wants
//! to be the only one that commits. Otherwise the foreign code can commit the claim of a message
//! and then fail: the next delivery is a duplicate, and the message is lost.
//!
//! In a guarded transaction the statements COMMIT and PREPARE TRANSACTION fail before they do
//! anything, and the transaction is then a failed one. So foreign tables do not commit either, and
//! a program that ignores the error gets 25P02 from each later statement. Any other way to commit
//! fails in a callback.
//!
//! The program itself sends a marked COMMIT: `COMMIT /* idem */`. It fails where a plain COMMIT
//! would report success without a commit: in a failed transaction, and after the end of the guarded
//! transaction, also on another connection to which a pooler has switched. A program whose driver
//! cannot send this text calls [`allow`] before its COMMIT. As this call would do, a marked COMMIT
//! fails if foreign code has left the transaction with a role or a `search_path` with which it
//! could not be called: otherwise they would apply to the next user of the connection.
//!
//! The state belongs to the transaction as a whole. ROLLBACK TO SAVEPOINT does not change it.

use crate::errors::{Error, Result};
use crate::pg::may_execute;
use crate::shared::ensure_preloaded;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

/// The comment in a marked COMMIT. PgBouncer and other poolers pass it on.
const MARK: &[u8] = b"/* idem */";

#[derive(Clone, Copy)]
enum Guard {
    /// The transaction is not guarded, or COMMIT is allowed in it.
    None,
    /// Only a marked COMMIT can end the transaction, or ROLLBACK.
    On(Caller),
    /// The server executes a marked COMMIT.
    Committing,
    /// The guarded transaction has failed. It is open until its ROLLBACK. This stays until a later
    /// transaction commits or fails as a whole, so that transaction can be reported as the failed
    /// one if it fails behind a savepoint. Nothing is committed then either.
    Failed,
}

/// What has guarded the transaction.
#[derive(Clone, Copy)]
struct Caller {
    /// The function that the caller has called to guard.
    function: pg_sys::Oid,
    role: pg_sys::Oid,
    /// A hash of the `search_path`.
    path: u64,
}

impl Caller {
    fn new(function: pg_sys::Oid) -> Self {
        // SAFETY: the setting is a C string.
        let path = unsafe { CStr::from_ptr(pg_sys::namespace_search_path) };
        Caller {
            function,
            // SAFETY: returns the present role.
            role: unsafe { pg_sys::GetUserId() },
            path: BuildHasherDefault::<DefaultHasher>::default().hash_one(path),
        }
    }

    /// Returns whether the function could be called now.
    fn can_call(self) -> bool {
        let now = Caller::new(self.function);
        // SAFETY: the transaction has not failed, so the catalogs can be read.
        unsafe {
            (now.path == self.path || pg_sys::FunctionIsVisible(self.function))
                && (now.role == self.role || may_execute(now.role, self.function))
        }
    }
}

thread_local! {
    static GUARD: Cell<Guard> = const { Cell::new(Guard::None) };
    static IS_WATCHING: Cell<bool> = const { Cell::new(false) };
}

/// From now on only a marked COMMIT commits this transaction. `function` is the function that was
/// called.
pub fn forbid(function: pg_sys::Oid) -> Result<()> {
    ensure_preloaded()?;
    // SAFETY: reads the state of the transaction.
    if !unsafe { pg_sys::IsTransactionBlock() } {
        return Err(Error::NoTransactionBlock {
            function: c"idem_forbid_commit()",
        });
    }
    if !IS_WATCHING.get() {
        // SAFETY: this succeeds once in each backend; the function lives as long as the library.
        unsafe { pg_sys::RegisterXactCallback(Some(on_event), std::ptr::null_mut()) };
        IS_WATCHING.set(true);
    }
    // Foreign code can call this too: the first caller counts.
    if !matches!(GUARD.get(), Guard::On(_)) {
        GUARD.set(Guard::On(Caller::new(function)));
    }
    Ok(())
}

/// Allows COMMIT again. Fails if COMMIT is not forbidden: in most cases the transaction in which it
/// was forbidden has ended.
pub fn allow() -> Result<()> {
    ensure_preloaded()?;
    match GUARD.replace(Guard::None) {
        Guard::None | Guard::Failed => Err(Error::CommitNotForbidden),
        _ => Ok(()),
    }
}

/// Returns whether the statement is COMMIT or PREPARE TRANSACTION.
///
/// # Safety
/// The pointer is a planned statement.
pub unsafe fn commits(statement: *const pg_sys::PlannedStmt) -> bool {
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
    }
}

/// Fails if the statement may not commit the transaction.
///
/// # Safety
/// The statement is one of the kinds of [`commits`], of this query text. No Rust frame with a
/// destructor is below this function, up to the next one of PostgreSQL.
#[pg_guard]
pub unsafe extern "C-unwind" fn check_commit(
    statement: *const pg_sys::PlannedStmt,
    query: *const c_char,
) {
    // SAFETY: guaranteed by the caller. The second function reads the state of the transaction.
    let (is_marked, has_failed) = unsafe {
        (
            is_marked(statement, query),
            pg_sys::IsAbortedTransactionBlockState(),
        )
    };
    let error = match (GUARD.get(), is_marked) {
        // The COMMIT of a failed transaction is a rollback.
        (_, false) if has_failed => return,
        (Guard::None, true) => Error::NoGuardedTransaction,
        (_, true) if has_failed => Error::FailedTransaction,
        (Guard::Failed, true) => Error::NoGuardedTransaction,
        (Guard::On(caller), true) if !caller.can_call() => Error::SettingsChanged,
        (_, true) => return GUARD.set(Guard::Committing),
        (Guard::None | Guard::Failed, false) => return,
        (_, false) => Error::CommitForbidden,
    };
    error.raise()
}

/// Returns whether the statement is a plain COMMIT with the mark in its own text, which can be a
/// part of the query text.
///
/// # Safety
/// As for [`check_commit`].
unsafe fn is_marked(statement: *const pg_sys::PlannedStmt, query: *const c_char) -> bool {
    // SAFETY: guaranteed by the caller: `commits` has checked the tag of the node.
    let (text, node, start, len) = unsafe {
        (
            CStr::from_ptr(query).to_bytes(),
            &*(*statement).utilityStmt.cast::<pg_sys::TransactionStmt>(),
            (*statement).stmt_location,
            (*statement).stmt_len,
        )
    };
    // COMMIT AND CHAIN would begin a transaction that is not guarded.
    if node.kind != pg_sys::TransactionStmtKind::TRANS_STMT_COMMIT || node.chain {
        return false;
    }
    // The server gives -1 for an unknown location, and 0 for the length of all that follows.
    let text = text.get(start.max(0) as usize..).unwrap_or_default();
    let text = match len {
        ..=0 => text,
        len => text.get(..len as usize).unwrap_or(text),
    };
    text.windows(MARK.len()).any(|part| part == MARK)
}

/// # Safety
/// Only PostgreSQL calls this function.
#[pg_guard]
unsafe extern "C-unwind" fn on_event(event: pg_sys::XactEvent::Type, _arg: *mut c_void) {
    use pg_sys::XactEvent::*;
    match event {
        // An error here rolls the transaction back.
        XACT_EVENT_PRE_COMMIT | XACT_EVENT_PRE_PREPARE if matches!(GUARD.get(), Guard::On(_)) => {
            Error::CommitForbidden.raise()
        }
        XACT_EVENT_ABORT if matches!(GUARD.get(), Guard::On(_) | Guard::Committing) => {
            GUARD.set(Guard::Failed);
        }
        XACT_EVENT_COMMIT | XACT_EVENT_ABORT | XACT_EVENT_PREPARE => GUARD.set(Guard::None),
        _ => {}
    }
}
