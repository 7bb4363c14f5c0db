//! Look-ups through an index with a dirty snapshot: they see what is committed now and what is being inserted now,
//! whatever the isolation level (as the apply worker of logical replication does, `execReplication.c`).

use super::Table;
use pgrx::pg_sys;
use pgrx::pg_sys::Datum;

/// What stands under a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    Nothing,
    /// Committed, or of this transaction: the columns of the row can be read.
    Row,
    /// Another transaction is inserting or deleting it. The token is not 0 while its insertion is speculative.
    InProgress {
        xid: pg_sys::TransactionId,
        speculative_token: u32,
    },
}

/// A look-up that can be repeated with other keys: the scan and its slot are set up once.
pub struct Lookup<'t> {
    scan: pg_sys::IndexScanDesc,
    /// Made when the index first names a row: most look-ups find none. Null until then.
    pub(super) slot: *mut pg_sys::TupleTableSlot,
    // Boxed: the scan keeps a pointer to it.
    snapshot: Box<pg_sys::SnapshotData>,
    pub(super) table: &'t Table,
}

impl<'t> Lookup<'t> {
    /// Prepares look-ups by the first `columns` columns of the index.
    pub fn new(table: &'t Table, columns: i32) -> Self {
        // SAFETY: an all-zero SnapshotData is what InitDirtySnapshot starts from.
        let mut snapshot: Box<pg_sys::SnapshotData> = Box::new(unsafe { std::mem::zeroed() });
        snapshot.snapshot_type = pg_sys::SnapshotType::SNAPSHOT_DIRTY;
        // SAFETY: table is open for as long as 't; the snapshot is boxed and dropped after the scan.
        unsafe {
            #[cfg(not(feature = "pg18"))]
            let scan = pg_sys::index_beginscan(table.heap, table.index, &mut *snapshot, columns, 0);
            #[cfg(feature = "pg18")]
            let scan = pg_sys::index_beginscan(table.heap, table.index, &mut *snapshot, std::ptr::null_mut(), columns, 0);
            Lookup {
                scan,
                slot: std::ptr::null_mut(),
                snapshot,
                table,
            }
        }
    }

    /// Starts over with these keys; `next` gives what stands there.
    pub fn seek(&mut self, keys: &mut [pg_sys::ScanKeyData]) {
        // SAFETY: the scan is open; index_rescan copies the keys.
        unsafe {
            if !self.slot.is_null() {
                pg_sys::ExecClearTuple(self.slot);
            }
            pg_sys::index_rescan(self.scan, keys.as_mut_ptr(), keys.len() as i32, std::ptr::null_mut(), 0);
        }
    }

    /// The next row or row in the making under the keys.
    pub fn next(&mut self) -> Found {
        if !self.fetch_next() {
            return Found::Nothing;
        }
        if self.snapshot.xmin != pg_sys::InvalidTransactionId {
            return Found::InProgress {
                xid: self.snapshot.xmin,
                speculative_token: self.snapshot.speculativeToken,
            };
        }
        if self.snapshot.xmax != pg_sys::InvalidTransactionId {
            return Found::InProgress {
                xid: self.snapshot.xmax,
                speculative_token: 0,
            };
        }
        Found::Row
    }

    /// What index_getnext_slot does, with a slot only for those who need one.
    fn fetch_next(&mut self) -> bool {
        let forward = pg_sys::ScanDirection::ForwardScanDirection;
        // SAFETY: seek has been called; the slot is of the table's kind. A row that several index entries lead to is
        // fetched for the first alone: xs_heap_continue asks for more of the same chain.
        unsafe {
            loop {
                if !(*self.scan).xs_heap_continue && pg_sys::index_getnext_tid(self.scan, forward).is_null() {
                    return false;
                }
                if self.slot.is_null() {
                    self.slot = pg_sys::table_slot_create(self.table.heap, std::ptr::null_mut());
                }
                if pg_sys::index_fetch_heap(self.scan, self.slot) {
                    return true;
                }
            }
        }
    }

    /// The only row under a unique key.
    pub fn find(&mut self, keys: &mut [pg_sys::ScanKeyData]) -> Found {
        self.seek(keys);
        self.next()
    }

    /// The next row that is there now, passing over those that others are inserting. A row that another transaction is
    /// deleting is still there.
    pub fn next_settled(&mut self) -> bool {
        loop {
            match self.next() {
                Found::Nothing => return false,
                Found::Row => return true,
                Found::InProgress { .. } if self.snapshot.xmin == pg_sys::InvalidTransactionId => return true,
                Found::InProgress { .. } => (),
            }
        }
    }

    /// Whether the row that was found in progress is committed: another transaction is changing or deleting it. Otherwise
    /// it is being inserted.
    pub fn is_there(&self) -> bool {
        self.snapshot.xmin == pg_sys::InvalidTransactionId
    }

    /// A column of the found row, counted from 1; `None` is NULL. A by-reference datum lives until the next look-up.
    pub fn column(&self, number: i32) -> Option<Datum> {
        debug_assert!(number >= 1);
        // SAFETY: a row was found, so the slot is full; the number is one of the table's columns.
        unsafe {
            if i32::from((*self.slot).tts_nvalid) < number {
                pg_sys::slot_getsomeattrs_int(self.slot, number);
            }
            let i = number as usize - 1;
            (!*(*self.slot).tts_isnull.add(i)).then(|| *(*self.slot).tts_values.add(i))
        }
    }

    /// All columns of the found row, copied into the current memory context and fetched from TOAST: the table may be
    /// truncated before they are used.
    pub fn row(&self) -> Vec<Option<Datum>> {
        // SAFETY: a row was found, and its table is locked.
        unsafe { super::insert::copy_of(self.slot) }
    }

    /// Whether this transaction inserted the found row.
    pub fn is_mine(&self) -> bool {
        // SAFETY: a row was found; heap slots know their xmin.
        unsafe {
            let mut isnull = false;
            let Some(getsysattr) = (*(*self.slot).tts_ops).getsysattr else {
                return false;
            };
            let xmin = getsysattr(self.slot, pg_sys::MinTransactionIdAttributeNumber, &mut isnull);
            pg_sys::TransactionIdIsCurrentTransactionId(pg_sys::TransactionId::from(xmin.value() as u32))
        }
    }

    /// Deletes the found row. The table is open for writing.
    pub fn delete(&mut self) {
        // SAFETY: a row was found and is settled; the place is copied before anything else can move the scan.
        unsafe {
            // What this very command inserted cannot be deleted before the next one.
            pg_sys::CommandCounterIncrement();
            let mut tid = (*self.slot).tts_tid;
            let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot());
            pg_sys::simple_table_tuple_delete(self.table.heap, &mut tid, snapshot);
            pg_sys::UnregisterSnapshot(snapshot);
        }
    }
}

impl Drop for Lookup<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // SAFETY: the scan and the slot were made in new and are used by nobody else.
        unsafe {
            pg_sys::index_endscan(self.scan);
            if !self.slot.is_null() {
                pg_sys::ExecDropSingleTupleTableSlot(self.slot);
            }
        }
    }
}
