//! Rejects lone claims. A claim is lone if its transaction does no other work.
//!
//! A lone claim is committed before the message is processed. If the processing then fails, the
//! message is lost, because its redelivery is a duplicate. So a claim function fails if all of this
//! is true:
//!
//! - The statement is outside a transaction block, a subtransaction and a pipeline.
//! - Its portal is one of the protocol and no cursor, and runs one SELECT without subqueries. A
//!   cursor is recognized by its options, because some drivers give names to other portals.
//! - The plan is a Result without children, a FunctionScan or a ValuesScan, with at most LIMIT and
//!   a set-returning function above it.
//! - The only volatile functions in it are the claims, `idem_is_claimed` and `idem_effects`.
//!   Functions of idem that write, such as `idem_send`, are work: a statement that claims a message
//!   and sends another one is a complete consumer.
//!
//! The first statement of a pipeline without BEGIN looks the same, and fails too. Other forms are
//! accepted, for example EXECUTE, aggregates, UNION, a CTE, a subquery, a volatile built-in
//! function beside the claim, and COPY. So the check finds a common mistake, but not every mistake.
//! `idem_claim_in_block` accepts a PL/pgSQL block with EXCEPTION and the second statement of a
//! pipeline, because the server reports a transaction block for both.

use crate::errors::{Error, Result};
use crate::pg::ensure_writable;
use crate::settings::{LONE_CLAIMS, LoneClaims};
use pgrx::pg_sys;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};

/// Functions of the extension that do not count as work: the claim functions, and functions that
/// only read.
const READ_OR_CLAIM: [&CStr; 6] = [
    c"idem_try_claim",
    c"idem_try_claim_batch",
    c"idem_try_claim_uuid_batch",
    c"idem_claim",
    c"idem_is_claimed",
    c"idem_effects",
];

/// What a claim function requires of its transaction.
pub enum Needs {
    /// The transaction must do other work than the claim. Only the present statement is examined.
    NotAlone(pg_sys::FunctionCallInfo),
    /// The claim is in a transaction block. The setting `idem.lone_claims` has no influence.
    Block,
}

/// Fails with 25006 if the server or the transaction is read-only, and with 25P01 if the
/// transaction does not fulfil `needs`.
pub fn check(needs: &Needs, function: &'static CStr) -> Result<()> {
    ensure_writable(function);
    match needs {
        Needs::NotAlone(fcinfo) => check_not_alone(*fcinfo, function),
        // SAFETY: reads the state of the transaction.
        Needs::Block if unsafe { pg_sys::IsTransactionBlock() } => Ok(()),
        Needs::Block => Err(Error::NoTransactionBlock { function }),
    }
}

fn check_not_alone(fcinfo: pg_sys::FunctionCallInfo, function: &'static CStr) -> Result<()> {
    let action = LONE_CLAIMS.get();
    if action == LoneClaims::Allow || !is_alone(oid_of(fcinfo)) {
        return Ok(());
    }
    if action == LoneClaims::Refuse {
        return Err(Error::LoneClaim { function });
    }
    if is_first_of_statement() {
        ErrorReport::from(Error::LoneClaim { function }).report(PgLogLevel::WARNING);
    }
    Ok(())
}

/// Returns true once for each statement, so that a statement that claims many messages causes only
/// one warning.
fn is_first_of_statement() -> bool {
    thread_local! {
        static WARNED: Cell<pg_sys::TimestampTz> = const { Cell::new(0) };
    }
    // SAFETY: reads a variable of the backend.
    let statement = unsafe { pg_sys::GetCurrentStatementStartTimestamp() };
    WARNED.replace(statement) != statement
}

fn oid_of(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Oid {
    // SAFETY: `fcinfo` belongs to the running function. Its `flinfo` is null in a direct function
    // call.
    unsafe {
        let info = (*fcinfo).flinfo.as_ref();
        info.map_or(pg_sys::InvalidOid, |info| info.fn_oid)
    }
}

/// Returns whether the client's statement does nothing but claim and is a transaction of its own.
fn is_alone(claim_function: pg_sys::Oid) -> bool {
    // SAFETY: reads the state of the transaction and the portal that runs.
    unsafe {
        if pg_sys::IsTransactionBlock()
            || pg_sys::GetCurrentTransactionNestLevel() > 1
            || pg_sys::MyXactFlags & pg_sys::XACT_FLAGS_PIPELINING as c_int != 0
        {
            return false;
        }
        let Some(portal) = pg_sys::ActivePortal.as_ref() else {
            return false;
        };
        if !is_of_client(portal)
            || portal.strategy != pg_sys::PortalStrategy::PORTAL_ONE_SELECT
            || length(portal.stmts) != 1
        {
            return false;
        }
        let statement = first(portal.stmts).cast::<pg_sys::PlannedStmt>();
        if statement.is_null() || (*statement).type_ != pg_sys::NodeTag::T_PlannedStmt {
            return false;
        }
        // A subquery may do other work.
        length((*statement).subplans) == 0 && only_claims((*statement).planTree, claim_function)
    }
}

/// Returns whether the portal runs a statement that the client sent, and is not a cursor. Some
/// drivers name the portals of all their statements, so a name does not show a cursor. The portal
/// of a statement has only the option NO SCROLL. DECLARE sets more options, and SPI generates names
/// for its unnamed portals.
fn is_of_client(portal: &pg_sys::PortalData) -> bool {
    if portal.name.is_null() {
        return true;
    }
    // SAFETY: the name of a portal ends with NUL.
    let name = unsafe { CStr::from_ptr(portal.name) }.to_bytes();
    name.is_empty()
        || portal.cursorOptions == pg_sys::CURSOR_OPT_NO_SCROLL as c_int
            && !name.starts_with(b"<unnamed portal")
}

/// A summary of the functions that the expressions of a plan call.
struct Calls {
    claim_function: pg_sys::Oid,
    has_claim: bool,
    has_other_writes: bool,
}

/// Returns whether a plan reads no table, calls the claim function and calls no other function that
/// could write.
///
/// # Safety
/// The plan belongs to a planned statement.
unsafe fn only_claims(plan: *mut pg_sys::Plan, claim_function: pg_sys::Oid) -> bool {
    let mut calls = Calls {
        claim_function,
        has_claim: false,
        has_other_writes: false,
    };
    // SAFETY: guaranteed by the caller; each plan node begins with a Plan and is cast by its tag.
    unsafe {
        let leaf = below_limit_and_set(plan, &mut calls);
        if leaf.is_null() || !(*leaf).lefttree.is_null() || !(*leaf).righttree.is_null() {
            return false;
        }
        match (*leaf).type_ {
            pg_sys::NodeTag::T_Result => {
                note(&mut calls, (*leaf.cast::<pg_sys::Result>()).resconstantqual);
            }
            pg_sys::NodeTag::T_FunctionScan => {
                let functions = (*leaf.cast::<pg_sys::FunctionScan>()).functions;
                note(&mut calls, functions.cast());
            }
            pg_sys::NodeTag::T_ValuesScan => {
                note(
                    &mut calls,
                    (*leaf.cast::<pg_sys::ValuesScan>()).values_lists.cast(),
                );
            }
            _ => return false,
        }
        note(&mut calls, (*leaf).targetlist.cast());
        note(&mut calls, (*leaf).qual.cast());
    }
    calls.has_claim && !calls.has_other_writes
}

/// Returns the plan node below LIMIT and set-returning functions, and notes the expressions of the
/// nodes above it. Such nodes are common: query builders add LIMIT 1, and callers unnest the result
/// of a batch.
///
/// # Safety
/// The plan belongs to a planned statement.
unsafe fn below_limit_and_set(mut plan: *mut pg_sys::Plan, calls: &mut Calls) -> *mut pg_sys::Plan {
    // SAFETY: guaranteed by the caller; each plan node begins with a Plan and is cast by its tag.
    unsafe {
        while !plan.is_null() {
            match (*plan).type_ {
                pg_sys::NodeTag::T_ProjectSet => note(calls, (*plan).targetlist.cast()),
                pg_sys::NodeTag::T_Limit => {
                    note(calls, (*plan.cast::<pg_sys::Limit>()).limitOffset);
                    note(calls, (*plan.cast::<pg_sys::Limit>()).limitCount);
                }
                _ => break,
            }
            plan = (*plan).lefttree;
        }
    }
    plan
}

/// Notes the functions in an expression or in a list of expressions.
///
/// # Safety
/// The node is an expression of a plan, or null.
unsafe fn note(calls: &mut Calls, node: *mut pg_sys::Node) {
    let context = std::ptr::from_mut(calls).cast();
    // SAFETY: guaranteed by the caller; the walker does not keep the context. The boundary turns
    // PostgreSQL errors into Rust panics.
    unsafe { pg_guard_ffi_boundary(|| walk(node, context)) };
}

/// Visits an expression and its parts. Returns true to end the walk.
///
/// # Safety
/// The node is a planned expression or null, and the context is a `Calls`. Only PostgreSQL and
/// `note` call this function.
#[pg_guard]
unsafe extern "C-unwind" fn walk(node: *mut pg_sys::Node, context: *mut c_void) -> bool {
    if node.is_null() {
        return false;
    }
    // SAFETY: guaranteed by the caller; both functions only read the node and pass the context on.
    unsafe {
        pg_sys::check_functions_in_node(node, Some(note_function), context)
            || pg_sys::expression_tree_walker(node, Some(walk), context)
    }
}

/// Notes one function that a node calls. Returns true to end the walk.
///
/// # Safety
/// The context is a `Calls` that no other code uses meanwhile.
#[pg_guard]
unsafe extern "C-unwind" fn note_function(function: pg_sys::Oid, context: *mut c_void) -> bool {
    const VOLATILE: c_char = b'v' as c_char;
    // SAFETY: guaranteed by the caller; catalog look-ups by OID.
    unsafe {
        let calls = &mut *context.cast::<Calls>();
        if function == calls.claim_function {
            calls.has_claim = true;
        } else if pg_sys::func_volatile(function) == VOLATILE && !is_read_or_claim(function) {
            calls.has_other_writes = true;
        }
        calls.has_other_writes
    }
}

/// Returns whether the function belongs to the extension and does not count as work.
fn is_read_or_claim(function: pg_sys::Oid) -> bool {
    // SAFETY: these are catalog look-ups by OID and by name. The name is a copy that ends with NUL.
    unsafe {
        let name = pg_sys::get_func_name(function);
        if name.is_null() || !READ_OR_CLAIM.contains(&CStr::from_ptr(name)) {
            return false;
        }
        let extension = pg_sys::getExtensionOfObject(pg_sys::ProcedureRelationId, function);
        extension != pg_sys::InvalidOid
            && extension == pg_sys::get_extension_oid(c"idem".as_ptr(), true)
    }
}

/// # Safety
/// The pointer is a List or null.
unsafe fn length(list: *mut pg_sys::List) -> i32 {
    // SAFETY: guaranteed by the caller.
    unsafe { list.as_ref().map_or(0, |list| list.length) }
}

/// # Safety
/// The list has an element.
unsafe fn first(list: *mut pg_sys::List) -> *mut c_void {
    // SAFETY: guaranteed by the caller.
    unsafe { (*(*list).elements).ptr_value }
}
