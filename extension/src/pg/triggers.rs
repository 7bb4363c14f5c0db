//! Triggers of others on the tables of idem. Functions of idem write these tables without the
//! executor, so such a trigger would not fire. A tool that copies a table and follows its changes
//! by a trigger, as pg_repack does, would lose the rows of claims.

use super::relation_name;
use crate::errors::Error;
use pgrx::pg_sys;
use std::ffi::CStr;

/// Raises 58000 if the table has an enabled trigger for rows that are written, and the trigger does
/// not belong to idem.
///
/// # Safety
/// `heap` is an open relation that is locked for writing.
pub(super) unsafe fn ensure_only_own_triggers(heap: pg_sys::Relation) {
    // SAFETY: by the contract of this function.
    let list = unsafe { (*heap).trigdesc };
    // SAFETY: the list is that of the open relation.
    if list.is_null() || !unsafe { triggers(list) }.iter().any(sees_rows) {
        return;
    }
    // The look-ups of `is_foreign` can replace the list of the relation, so they use a copy.
    // SAFETY: by the contract of this function; the copy is in the current memory context.
    let copy = unsafe { triggers(pg_sys::CopyTriggerDesc(list)) };
    let Some(trigger) = copy
        .iter()
        .find(|trigger| sees_rows(trigger) && is_foreign(trigger))
    else {
        return;
    };
    // SAFETY: the name is NUL-terminated, and the relation is open.
    let (trigger, table) = unsafe {
        (
            CStr::from_ptr(trigger.tgname)
                .to_string_lossy()
                .into_owned(),
            relation_name((*heap).rd_id).unwrap_or_default(),
        )
    };
    Error::ForeignTrigger { trigger, table }.raise();
}

/// Returns the triggers of a list.
///
/// # Safety
/// `list` is valid, and stays valid while the result is used.
unsafe fn triggers<'a>(list: *mut pg_sys::TriggerDesc) -> &'a [pg_sys::Trigger] {
    // SAFETY: by the contract of this function.
    unsafe { std::slice::from_raw_parts((*list).triggers, (*list).numtriggers as usize) }
}

/// Returns whether the trigger is enabled and sees rows that are written: one by one, or as the
/// table of all rows of a statement.
fn sees_rows(trigger: &pg_sys::Trigger) -> bool {
    let writes =
        pg_sys::TRIGGER_TYPE_INSERT | pg_sys::TRIGGER_TYPE_DELETE | pg_sys::TRIGGER_TYPE_UPDATE;
    let has = |bits: u32| i64::from(trigger.tgtype) & i64::from(bits) != 0;
    let has_table = !trigger.tgnewtable.is_null() || !trigger.tgoldtable.is_null();
    trigger.tgenabled as u8 != b'D' && has(writes) && (has(pg_sys::TRIGGER_TYPE_ROW) || has_table)
}

fn is_foreign(trigger: &pg_sys::Trigger) -> bool {
    // SAFETY: look-ups in the system caches.
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"idem".as_ptr(), true);
        pg_sys::get_func_namespace(trigger.tgfoid) != schema
    }
}
