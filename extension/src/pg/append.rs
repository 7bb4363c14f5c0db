//! Appends and replaces rows with the executor's own functions: every index and constraint is
//! maintained, without a plan and without privileges of the caller.

use super::scratch::within;
use super::{Lookup, Walk};
use pgrx::pg_sys;
use pgrx::pg_sys::Datum;

/// A table that is open for appending. It stays locked until the end of the transaction.
pub struct Appender {
    heap: pg_sys::Relation,
    estate: *mut pg_sys::EState,
    target: *mut pg_sys::ResultRelInfo,
    slot: *mut pg_sys::TupleTableSlot,
    /// The memory context that was current in `open`.
    context: pg_sys::MemoryContext,
}

impl Appender {
    pub fn open(table: pg_sys::Oid) -> Self {
        // SAFETY: table_open raises an error unless the OID is a table. The functions are those of
        // a worker that applies an insert (logical replication's apply_handle_insert_internal).
        unsafe {
            let heap = pg_sys::table_open(table, pg_sys::RowExclusiveLock as pg_sys::LOCKMODE);
            let estate = pg_sys::CreateExecutorState();
            let target =
                pg_sys::palloc0(size_of::<pg_sys::ResultRelInfo>()).cast::<pg_sys::ResultRelInfo>();
            // 0: the relation is in no range table. An update reads the changed columns from there.
            pg_sys::InitResultRelInfo(target, heap, 0, std::ptr::null_mut(), 0);
            pg_sys::ExecOpenIndices(target, false);
            let slot = pg_sys::MakeSingleTupleTableSlot(
                (*heap).rd_att,
                pg_sys::table_slot_callbacks(heap),
            );
            Appender {
                heap,
                estate,
                target,
                slot,
                context: pg_sys::CurrentMemoryContext,
            }
        }
    }

    /// Appends one row: all columns of the table, in order; `None` is NULL.
    pub fn append(&mut self, values: &[Option<Datum>]) {
        // SAFETY: the caller guarantees that the values match the columns of the table.
        unsafe {
            super::insert::fill(self.slot, values);
            (*self.slot).tts_tableOid = (*self.heap).rd_id;
            // Data that a trigger of an administrator caches must live as long as this appender.
            let context = if (*self.target).ri_TrigDesc.is_null() {
                pg_sys::CurrentMemoryContext
            } else {
                self.context
            };
            within(context, || {
                pg_sys::ExecSimpleRelationInsert(self.target, self.estate, self.slot)
            });
        }
    }

    /// Replaces the row of this table that the look-up holds.
    pub fn replace(&mut self, held: &Lookup, values: &[Option<Datum>]) {
        self.replace_row(held.slot, values);
    }

    /// Replaces the row of this table that the walk has locked.
    pub fn replace_walked(&mut self, locked: &Walk, values: &[Option<Datum>]) {
        self.replace_row(locked.slot(), values);
    }

    fn replace_row(&mut self, held: *mut pg_sys::TupleTableSlot, values: &[Option<Datum>]) {
        // SAFETY: as in append; the row is locked, so no other transaction changes it. Only
        // triggers that an administrator added use the EPQState (logical replication's
        // apply_handle_update_internal).
        unsafe {
            super::insert::fill(self.slot, values);
            (*self.slot).tts_tableOid = (*self.heap).rd_id;
            let mut epq: pg_sys::EPQState = std::mem::zeroed();
            let none = std::ptr::null_mut();
            #[cfg(any(feature = "pg13", feature = "pg14", feature = "pg15"))]
            pg_sys::EvalPlanQualInit(&mut epq, self.estate, none, std::ptr::null_mut(), -1);
            #[cfg(not(any(feature = "pg13", feature = "pg14", feature = "pg15")))]
            pg_sys::EvalPlanQualInit(
                &mut epq,
                self.estate,
                none,
                std::ptr::null_mut(),
                -1,
                std::ptr::null_mut(),
            );
            pg_sys::ExecSimpleRelationUpdate(self.target, self.estate, &mut epq, held, self.slot);
            pg_sys::EvalPlanQualEnd(&mut epq);
        }
    }
}

impl Drop for Appender {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // SAFETY: all of it was created in open, and no other code uses it.
        unsafe {
            pg_sys::ExecCloseIndices(self.target);
            pg_sys::ExecDropSingleTupleTableSlot(self.slot);
            pg_sys::FreeExecutorState(self.estate);
            pg_sys::table_close(self.heap, pg_sys::NoLock as pg_sys::LOCKMODE);
        }
    }
}
