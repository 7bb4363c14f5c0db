//! Lone claims: a claim that is the only thing its transaction does.
//!
//! Such a claim commits by itself. When the work after it fails, the message is lost, because its
//! redelivery is a duplicate. So a claim fails in a statement outside a transaction block that
//! calls it and can write nothing else.

use crate::errors::{Error, Result};
use crate::settings::{LONE_CLAIMS, LoneClaims};
use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::ffi::{c_char, c_int, c_void};

/// 25P01, or a warning, when this call is a lone claim.
pub fn check(fcinfo: pg_sys::FunctionCallInfo, function: &'static str) -> Result<()> {
    let action = LONE_CLAIMS.get();
    if action == LoneClaims::Allow || !is_lone(called(fcinfo)) {
        return Ok(());
    }
    let error = Error::LoneClaim { function };
    if action == LoneClaims::Refuse {
        return Err(error);
    }
    ErrorReport::from(error).report(PgLogLevel::WARNING);
    Ok(())
}

/// 25P01 outside a transaction block, whatever the setting.
pub fn require_block(function: &'static str) -> Result<()> {
    // SAFETY: reads the state of the transaction.
    if unsafe { pg_sys::IsTransactionBlock() } {
        return Ok(());
    }
    Err(Error::NoTransactionBlock { function })
}

fn called(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Oid {
    // SAFETY: fcinfo is that of the function that runs; a direct call has no flinfo.
    unsafe {
        let info = (*fcinfo).flinfo.as_ref();
        info.map_or(pg_sys::InvalidOid, |info| info.fn_oid)
    }
}

/// Whether the client's statement does nothing but claim, in a transaction of its own.
fn is_lone(called: pg_sys::Oid) -> bool {
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
        let is_cursor = !portal.name.is_null() && *portal.name != 0;
        if is_cursor || portal.strategy != pg_sys::PortalStrategy::PORTAL_ONE_SELECT || length(portal.stmts) != 1 {
            return false;
        }
        let statement = first(portal.stmts).cast::<pg_sys::PlannedStmt>();
        if statement.is_null() || (*statement).type_ != pg_sys::NodeTag::T_PlannedStmt {
            return false;
        }
        only_claims((*statement).planTree, called)
    }
}

/// What the expressions of a plan call.
struct Calls {
    called: pg_sys::Oid,
    calls_it: bool,
    calls_others: bool,
}

/// Whether a plan reads no table, calls this function, and calls no other that could write.
///
/// # Safety
/// The plan is that of a planned statement.
unsafe fn only_claims(plan: *mut pg_sys::Plan, called: pg_sys::Oid) -> bool {
    let mut calls = Calls {
        called,
        calls_it: false,
        calls_others: false,
    };
    // SAFETY: as the caller's; each plan node begins with a Plan and is cast by its tag.
    unsafe {
        let mut plan = plan;
        // SELECT unnest(idem_try_claim_batch(...))
        if !plan.is_null() && (*plan).type_ == pg_sys::NodeTag::T_ProjectSet {
            note(&mut calls, (*plan).targetlist.cast());
            plan = (*plan).lefttree;
        }
        if plan.is_null() || !(*plan).lefttree.is_null() || !(*plan).righttree.is_null() {
            return false;
        }
        match (*plan).type_ {
            pg_sys::NodeTag::T_Result => {
                note(&mut calls, (*plan.cast::<pg_sys::Result>()).resconstantqual);
            }
            pg_sys::NodeTag::T_FunctionScan => {
                note(&mut calls, (*plan.cast::<pg_sys::FunctionScan>()).functions.cast());
            }
            _ => return false,
        }
        note(&mut calls, (*plan).targetlist.cast());
        note(&mut calls, (*plan).qual.cast());
    }
    calls.calls_it && !calls.calls_others
}

/// Notes what an expression, or a list of them, calls.
///
/// # Safety
/// The node is an expression of a plan, or null.
unsafe fn note(calls: &mut Calls, node: *mut pg_sys::Node) {
    // SAFETY: as the caller's; the walker does not keep the context.
    unsafe { walk(node, std::ptr::from_mut(calls).cast()) };
}

#[pg_guard]
unsafe extern "C-unwind" fn walk(node: *mut pg_sys::Node, context: *mut c_void) -> bool {
    if node.is_null() {
        return false;
    }
    // SAFETY: PostgreSQL calls this with nodes of the expression and the context that was given to the walker.
    unsafe {
        if (*node).type_ == pg_sys::NodeTag::T_RangeTblFunction {
            return walk((*node.cast::<pg_sys::RangeTblFunction>()).funcexpr, context);
        }
        pg_sys::check_functions_in_node(node, Some(note_function), context);
        pg_sys::expression_tree_walker(node, Some(walk), context)
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn note_function(function: pg_sys::Oid, context: *mut c_void) -> bool {
    const VOLATILE: c_char = b'v' as c_char;
    // SAFETY: the context is a Calls.
    unsafe {
        let calls = &mut *context.cast::<Calls>();
        calls.calls_it |= function == calls.called;
        calls.calls_others |= pg_sys::func_volatile(function) == VOLATILE && !is_ours(function);
    }
    false
}

/// Whether the function belongs to the extension.
fn is_ours(function: pg_sys::Oid) -> bool {
    // SAFETY: look-ups in the catalog by OID and by name.
    unsafe {
        let extension = pg_sys::getExtensionOfObject(pg_sys::ProcedureRelationId, function);
        extension != pg_sys::InvalidOid && extension == pg_sys::get_extension_oid(c"idem".as_ptr(), true)
    }
}

/// # Safety
/// The pointer is a List or null.
unsafe fn length(list: *mut pg_sys::List) -> i32 {
    // SAFETY: as the caller's.
    unsafe { list.as_ref().map_or(0, |list| list.length) }
}

/// # Safety
/// The list has an element.
unsafe fn first(list: *mut pg_sys::List) -> *mut c_void {
    // SAFETY: as the caller's.
    unsafe { (*(*list).elements).ptr_value }
}
