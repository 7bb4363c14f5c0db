//! Inserts a row that other transactions can use at once, and that stays when the transaction of
//! the insert rolls back, as the state of a sequence does.
//!
//! The row and its index entries are inserted as usual. Then the row is marked as frozen, in a WAL
//! record of its own. If the server stops before this record is on disk, the row belongs to a
//! transaction that never committed. Every transaction that has used the row commits with a later
//! record, so no committed transaction loses the row. A standby sees the row when it replays the
//! record.

use super::{Inserter, Table};
use crate::pause::pause_point;
use pgrx::pg_sys;
use pgrx::pg_sys::Datum;

/// Inserts a row unless its unique key is taken, like [`Inserter::insert`], and makes it
/// permanent. Only one transaction at a time may insert into the table.
pub fn insert_permanently(table: &Table, values: &[Option<Datum>]) -> bool {
    let mut inserter = Inserter::new(table);
    if !inserter.insert(values) {
        return false;
    }
    pause_point("insert: before permanent");
    if let Some(tid) = inserter.tid() {
        freeze(table, tid);
    }
    true
}

/// Returns whether a publication of logical replication contains the inserts into the table. Its
/// subscribers get rows of committed transactions only.
pub fn is_published(table: &Table) -> bool {
    // SAFETY: the table is open; the function fills the description.
    unsafe {
        let mut publication = pg_sys::PublicationDesc::default();
        pg_sys::RelationBuildPublicationDesc(table.heap, &mut publication);
        publication.pubactions.pubinsert
    }
}

/// Marks the row that this transaction inserted at `tid` as frozen.
fn freeze(table: &Table, tid: pg_sys::ItemPointerData) {
    let (block, offset) = pgrx::itemptr::item_pointer_get_both(tid);
    // SAFETY: the row is at `tid`, because no other transaction can prune or move a row that is
    // being inserted. The page is changed in the copy of the WAL record under the exclusive lock.
    unsafe {
        let buffer = pg_sys::ReadBuffer(table.heap, block);
        pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_EXCLUSIVE as i32);
        let record = pg_sys::GenericXLogStart(table.heap);
        let page = pg_sys::GenericXLogRegisterBuffer(record, buffer, 0);
        let item = pg_sys::PageGetItem(page, pg_sys::PageGetItemId(page, offset));
        let header = item.cast::<pg_sys::HeapTupleHeaderData>();
        (*header).t_infomask |= super::lookup::FROZEN;
        pg_sys::GenericXLogFinish(record);
        pg_sys::UnlockReleaseBuffer(buffer);
    }
}
