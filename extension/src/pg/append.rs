//! Appends and replaces rows with the executor's own functions, which maintain every index and
//! check every constraint. No plan and no privileges of the caller are needed.

use super::{Lookup, Walk};
use pgrx::pg_sys;
use pgrx::pg_sys::Datum;

/// A table that is open for appending. It stays locked until the end of the transaction.
pub struct Appender {
    heap: pg_sys::Relation,
    estate: *mut pg_sys::EState,
    target: *mut pg_sys::ResultRelInfo,
    slot: *mut pg_sys::TupleTableSlot,
}

impl Appender {
    pub fn open(table: pg_sys::Oid) -> Self {
        // SAFETY: table_open raises an error unless the OID is a table. The functions called here
        // are those of apply_handle_insert_internal in logical replication.
        unsafe {
            let heap = pg_sys::table_open(table, pg_sys::RowExclusiveLock as pg_sys::LOCKMODE);
            super::triggers::ensure_only_own_triggers(heap);
            let estate = pg_sys::CreateExecutorState();
            let target =
                pg_sys::palloc0(size_of::<pg_sys::ResultRelInfo>()).cast::<pg_sys::ResultRelInfo>();
            // 0: the relation has no entry in a range table. An update would only read the list of
            // changed columns from that entry.
            pg_sys::InitResultRelInfo(target, heap, 0, std::ptr::null_mut(), 0);
            // Only disabled triggers are left. PostgreSQL would queue events for them, and a
            // function that SELECT calls has no such queue.
            (*target).ri_TrigDesc = std::ptr::null_mut();
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
            }
        }
    }

    /// Appends one row. `values` are all columns of the table, in order; `None` is NULL.
    pub fn append(&mut self, values: &[Option<Datum>]) {
        // SAFETY: the caller guarantees that the values match the columns of the table.
        unsafe {
            super::insert::fill(self.slot, values);
            (*self.slot).tts_tableOid = (*self.heap).rd_id;
            pg_sys::ExecSimpleRelationInsert(self.target, self.estate, self.slot);
        }
    }

    /// Replaces the row of this table that the look-up has locked.
    pub fn replace(&mut self, held: &Lookup, values: &[Option<Datum>]) {
        self.replace_row(held.slot, values);
    }

    /// Replaces the row of this table that the walk has locked.
    pub fn replace_walked(&mut self, locked: &Walk, values: &[Option<Datum>]) {
        self.replace_row(locked.slot(), values);
    }

    fn replace_row(&mut self, held: *mut pg_sys::TupleTableSlot, values: &[Option<Datum>]) {
        // SAFETY: the values match the columns, as in `append`. The row is locked, so no other
        // transaction changes it. Only triggers use the EPQState (as in
        // apply_handle_update_internal of logical replication).
        unsafe {
            super::insert::fill(self.slot, values);
            (*self.slot).tts_tableOid = (*self.heap).rd_id;
            let mut epq: pg_sys::EPQState = std::mem::zeroed();
            let none = std::ptr::null_mut();
            #[cfg(feature = "pg15")]
            pg_sys::EvalPlanQualInit(&mut epq, self.estate, none, std::ptr::null_mut(), -1);
            #[cfg(not(feature = "pg15"))]
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
        // SAFETY: `open` created all these objects, and no other code uses them.
        unsafe {
            pg_sys::ExecCloseIndices(self.target);
            pg_sys::ExecDropSingleTupleTableSlot(self.slot);
            pg_sys::FreeExecutorState(self.estate);
            pg_sys::table_close(self.heap, pg_sys::NoLock as pg_sys::LOCKMODE);
        }
    }
}
