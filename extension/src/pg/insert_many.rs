//! Inserts many rows with unique keys together. This writes less WAL than one insert for each row,
//! because it needs no speculative insertion. It never waits.

use super::insert::{fill, index_insert};
use super::{Scratch, Table, routine};
use pgrx::pg_sys;
use pgrx::pg_sys::Datum;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;

/// The number of rows that are written to the table together.
const ROWS: usize = 128;

/// Inserts rows into one table, many at a time.
pub struct ManyInserter<'t> {
    table: &'t Table,
    slots: Vec<*mut pg_sys::TupleTableSlot>,
    info: *mut pg_sys::IndexInfo,
}

impl<'t> ManyInserter<'t> {
    /// Creates what the inserts of this many rows need. Returns `None` if an administrator has
    /// added an index to the table: rows are then inserted one by one.
    pub fn new(table: &'t Table, rows: usize) -> Option<Self> {
        if table.has_other_indexes() {
            return None;
        }
        // SAFETY: the table and its index are open for as long as 't.
        let slot = || unsafe {
            let heap = table.heap;
            pg_sys::MakeSingleTupleTableSlot((*heap).rd_att, pg_sys::table_slot_callbacks(heap))
        };
        Some(ManyInserter {
            table,
            slots: std::iter::repeat_with(slot).take(rows.min(ROWS)).collect(),
            // SAFETY: as above.
            info: unsafe { pg_sys::BuildIndexInfo(table.index) },
        })
    }

    /// Inserts a row for each element, in a subtransaction of the caller. Returns false if a key is
    /// taken, or if another transaction is inserting it. The caller must then roll the
    /// subtransaction back, because some of the rows are inserted.
    pub fn insert<T, const N: usize>(
        &mut self,
        elements: &[T],
        scratch: &Scratch,
        row: impl Fn(&T) -> [Option<Datum>; N],
    ) -> bool {
        elements.chunks(ROWS).all(|part| {
            pgrx::check_for_interrupts!();
            scratch.with(|| self.insert_part(part, &row))
        })
    }

    fn insert_part<T, const N: usize>(
        &mut self,
        part: &[T],
        row: &impl Fn(&T) -> [Option<Datum>; N],
    ) -> bool {
        let ManyInserter { table, slots, info } = self;
        let Some(slots) = slots.get_mut(..part.len()) else {
            return false;
        };
        // SAFETY: each slot has the table's columns, which the values match. The functions and
        // their order are those of COPY. An error leaves rows of an aborted subtransaction.
        unsafe {
            let heap = table.heap;
            for (slot, element) in slots.iter().zip(part) {
                fill(*slot, &row(element));
            }
            let command = pg_sys::GetCurrentCommandId(true);
            let multi_insert = routine(heap, |am| am.multi_insert);
            let (first, count) = (slots.as_mut_ptr(), slots.len() as i32);
            pg_guard_ffi_boundary(|| {
                multi_insert(heap, first, count, command, 0, std::ptr::null_mut())
            });
            slots.iter().all(|slot| {
                index_insert(
                    table.index,
                    *slot,
                    heap,
                    *info,
                    pg_sys::IndexUniqueCheck::UNIQUE_CHECK_PARTIAL,
                )
            })
        }
    }
}

impl Drop for ManyInserter<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for slot in &self.slots {
            // SAFETY: `new` created the slots, and no other code uses them.
            unsafe { pg_sys::ExecDropSingleTupleTableSlot(*slot) };
        }
    }
}
