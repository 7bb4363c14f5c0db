//! Triggers of others on the tables of idem. Functions of idem write these tables without the
//! executor, so such a trigger would not fire. A tool that copies a table and follows its changes
//! by a trigger, as pg_repack does, would lose the rows of claims.

use super::{raise, relation_name};
use pgrx::PgSqlErrorCode;
use pgrx::pg_sys;
use std::ffi::CStr;

/// Raises 58000 if the table has an enabled trigger for rows that are written, and the trigger does
/// not belong to idem.
///
/// # Safety
/// `heap` is an open relation that is locked for writing.
pub(super) unsafe fn ensure_only_own_triggers(heap: pg_sys::Relation) {
    // SAFETY: by the contract of this function.
    if unsafe { (*heap).trigdesc.is_null() } {
        return;
    }
    // The look-ups of `is_foreign` can replace the list of the relation, so they use a copy.
    // SAFETY: by the contract of this function; the copy is in the current memory context.
    let triggers = unsafe {
        let list = pg_sys::CopyTriggerDesc((*heap).trigdesc);
        std::slice::from_raw_parts((*list).triggers, (*list).numtriggers as usize)
    };
    let Some(trigger) = triggers.iter().find(|trigger| is_foreign(trigger)) else {
        return;
    };
    // SAFETY: the name is NUL-terminated, and the relation is open.
    let (name, table) = unsafe {
        (
            CStr::from_ptr(trigger.tgname).to_string_lossy(),
            relation_name((*heap).rd_id).unwrap_or_default(),
        )
    };
    raise(
        PgSqlErrorCode::ERRCODE_SYSTEM_ERROR,
        format!("trigger \"{name}\" on table idem.{table} does not belong to idem"),
        "Drop the trigger, or the foreign key that it belongs to. Functions of idem write this \
         table without firing it, so a tool such as pg_repack would lose rows.",
    );
}

fn is_foreign(trigger: &pg_sys::Trigger) -> bool {
    let rows =
        pg_sys::TRIGGER_TYPE_INSERT | pg_sys::TRIGGER_TYPE_DELETE | pg_sys::TRIGGER_TYPE_UPDATE;
    // SAFETY: look-ups in the system caches.
    let is_own = || unsafe {
        let schema = pg_sys::get_namespace_oid(c"idem".as_ptr(), true);
        pg_sys::get_func_namespace(trigger.tgfoid) == schema
    };
    trigger.tgenabled as u8 != b'D' && i64::from(trigger.tgtype) & i64::from(rows) != 0 && !is_own()
}
