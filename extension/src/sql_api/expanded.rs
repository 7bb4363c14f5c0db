//! Rejects `(f(…)).*` for functions that write and return a row. PostgreSQL expands it into
//! `(f(…)).a, (f(…)).b`, and calls the function once for each column. A second `idem_acquire` would
//! find the first lease, and a second `idem_begin_call` would count another attempt. A second
//! `idem_claim` finds the first claim and returns the rest of its row, so it needs no check.
//! Functions that return sets are called once.

use crate::errors::{Error, Result};
use pgrx::pg_sys;
use std::cell::RefCell;
use std::ffi::CStr;
use std::ffi::c_void;

/// A call that has written, in a query that still runs.
#[derive(Clone, Copy)]
struct Call {
    /// The memory of the query. It contains the state of each call in the query.
    query: pg_sys::MemoryContext,
    /// The state of the call. It is the same for every row of the query.
    function: *mut pg_sys::FmgrInfo,
    expression: *mut pg_sys::Node,
    /// The command of the query's snapshot. PL/pgSQL evaluates simple expressions of a whole
    /// transaction in the same memory, but each with a new snapshot.
    command: pg_sys::CommandId,
}

thread_local! {
    static CALLS: RefCell<Vec<Call>> = const { RefCell::new(Vec::new()) };
}

/// Fails with 42601 if the query has called the function with the same arguments at another place
/// before, and that call has written. Call this at the end of the function: after an error nothing
/// of the statement is kept.
pub fn ensure_called_once(fcinfo: pg_sys::FunctionCallInfo, name: &'static CStr) -> Result<()> {
    let Some(call) = Call::of(fcinfo) else {
        return Ok(());
    };
    let mut is_known = false;
    let mut is_new_query = true;
    CALLS.with_borrow(|calls| {
        for earlier in calls.iter().filter(|earlier| earlier.query == call.query) {
            is_new_query = false;
            if earlier.is_same_call(&call) {
                is_known |= earlier.function == call.function;
                if earlier.function != call.function {
                    return Err(Error::ExpandedRow { function: name });
                }
            }
        }
        Ok(())
    })?;
    if is_new_query {
        forget_with(call.query);
    }
    if !is_known {
        CALLS.with_borrow_mut(|calls| {
            // A loop of PL/pgSQL calls the function again with each command.
            calls.retain(|earlier| earlier.query != call.query || earlier.command == call.command);
            calls.push(call);
        });
    }
    Ok(())
}

impl Call {
    /// Returns `None` if nothing was written since the query began, or if the function was not
    /// called by the executor.
    fn of(fcinfo: pg_sys::FunctionCallInfo) -> Option<Self> {
        // SAFETY: `fcinfo` belongs to the running function; the other functions read and advance
        // the state of the transaction.
        unsafe {
            let function = (*fcinfo).flinfo;
            let info = function.as_ref().filter(|info| !info.fn_expr.is_null())?;
            if !pg_sys::ActiveSnapshotSet() {
                return None;
            }
            let command = (*pg_sys::GetActiveSnapshot()).curcid;
            pg_sys::CommandCounterIncrement();
            (pg_sys::GetCurrentCommandId(false) > command).then_some(Call {
                query: info.fn_mcxt,
                function,
                expression: info.fn_expr,
                command,
            })
        }
    }

    fn is_same_call(&self, other: &Call) -> bool {
        // SAFETY: both queries run, so their expressions exist.
        self.command == other.command
            && unsafe { pg_sys::equal(self.expression.cast(), other.expression.cast()) }
    }
}

/// Forgets the calls of a query when its memory is freed.
fn forget_with(query: pg_sys::MemoryContext) {
    // SAFETY: the query runs, so its memory context exists. The callback is allocated in it.
    unsafe {
        let callback =
            pg_sys::MemoryContextAllocZero(query, size_of::<pg_sys::MemoryContextCallback>())
                .cast::<pg_sys::MemoryContextCallback>();
        (*callback).func = Some(on_reset);
        (*callback).arg = query.cast();
        pg_sys::MemoryContextRegisterResetCallback(query, callback);
    }
}

/// # Safety
/// Only PostgreSQL calls this function.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn on_reset(query: *mut c_void) {
    CALLS.with_borrow_mut(|calls| calls.retain(|call| call.query != query.cast()));
}
