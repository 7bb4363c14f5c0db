//! Look-ups through an index with a dirty snapshot. They see rows that are committed now and rows
//! that are being inserted now, at every isolation level (like the apply worker of logical
//! replication, `execReplication.c`).
//!
//! A dirty scan can miss a row that another transaction updates: the old version is dead when the
//! scan reads it, and the index entry of the new version was inserted after the scan copied the
//! index page. So if a scan finds no row but meets a version that is not visible, it is repeated
//! with a new snapshot, which sees exactly one version of every row.
//!
//! After `find` and its variants a look-up has no page pinned, so the caller may wait for another
//! transaction.

use super::delete::delete_row;
use super::now::is_visible;
use super::scratch::within;
use super::segments::{self, Reads, Segments};
use super::writer::Write;
use super::{Segment, Table, Writer, look_again};
use crate::pause::pause_point;
use crate::settings::WAIT_FOR_FLUSH;
use pgrx::pg_sys;
use pgrx::pg_sys::Datum;

/// The flags of a row version that every snapshot sees.
pub(super) const FROZEN: u16 = (pg_sys::HEAP_XMIN_COMMITTED | pg_sys::HEAP_XMIN_INVALID) as u16;

/// The state of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    Nothing,
    /// The row is committed, or this transaction wrote it. Its columns can be read.
    Row,
    /// Another transaction is inserting or deleting the row.
    InProgress(Writer),
}

/// A look-up that can be repeated with other keys. The scan and its slot are set up once.
pub struct Lookup<'t> {
    scan: pg_sys::IndexScanDesc,
    /// Created when the index first returns a row, because most look-ups find no row. Null until
    /// then.
    pub(super) slot: *mut pg_sys::TupleTableSlot,
    // Boxed, because the scan keeps a pointer to the snapshot.
    snapshot: Box<pg_sys::SnapshotData>,
    pub(super) table: &'t Table,
    /// The memory context of the caller of `new`. What the scan and the slot allocate lives as long
    /// as the look-up.
    context: pg_sys::MemoryContext,
    columns: i32,
    /// Only in a slice of the inbox.
    segments: Option<Segments>,
    rows_are_updated: bool,
    /// Whether the index has returned an invisible version since the last `seek`.
    met_invisible: bool,
}

impl<'t> Lookup<'t> {
    /// Prepares look-ups by the first `columns` columns of the index.
    pub fn new(table: &'t Table, columns: i32) -> Self {
        Self::over(table, columns, None, true)
    }

    /// Prepares look-ups in a table with rows that are inserted and deleted, but never updated.
    /// There an invisible version has no newer version, so no scan is repeated.
    pub fn insert_only(table: &'t Table, columns: i32) -> Self {
        Self::over(table, columns, None, false)
    }

    /// Prepares look-ups by key and destination in all segments of a slice of the inbox.
    pub fn in_segments(table: &'t Table) -> Self {
        Self::in_slice(table, Reads::All)
    }

    /// Prepares look-ups by key and destination in one segment of a slice of the inbox.
    pub fn in_segment(table: &'t Table, segment: Segment) -> Self {
        Self::in_slice(table, Reads::One(segment))
    }

    fn in_slice(table: &'t Table, reads: Reads) -> Self {
        let columns = segments::COLUMNS as i32;
        Self::over(table, columns, Some(Segments::new(reads)), false)
    }

    fn over(
        table: &'t Table,
        columns: i32,
        segments: Option<Segments>,
        rows_are_updated: bool,
    ) -> Self {
        // SAFETY: an all-zero SnapshotData is what InitDirtySnapshot starts from.
        let mut snapshot: Box<pg_sys::SnapshotData> = Box::new(unsafe { std::mem::zeroed() });
        snapshot.snapshot_type = pg_sys::SnapshotType::SNAPSHOT_DIRTY;
        Lookup {
            scan: table.begin_scan(&mut *snapshot, columns),
            slot: std::ptr::null_mut(),
            snapshot,
            table,
            // SAFETY: reads a variable of the backend.
            context: unsafe { pg_sys::CurrentMemoryContext },
            columns,
            segments,
            rows_are_updated,
            met_invisible: false,
        }
    }

    /// Starts a scan with these keys. `next` returns its rows.
    pub fn seek(&mut self, keys: &mut [pg_sys::ScanKeyData]) {
        self.met_invisible = false;
        self.clear();
        match &mut self.segments {
            None => self.rescan(keys),
            Some(segments) => {
                segments.begin(self.table, keys);
                self.seek_segment();
            }
        }
    }

    /// Starts the scan of the present segment. Returns false if no segment is left.
    fn seek_segment(&mut self) -> bool {
        let keys = self.segments.as_ref().and_then(Segments::keys);
        keys.map(|mut keys| self.rescan(&mut keys)).is_some()
    }

    fn rescan(&mut self, keys: &mut [pg_sys::ScanKeyData]) {
        // SAFETY: the scan is open; index_rescan copies the keys.
        within(self.context, || unsafe {
            pg_sys::index_rescan(
                self.scan,
                keys.as_mut_ptr(),
                keys.len() as i32,
                std::ptr::null_mut(),
                0,
            );
        });
    }

    /// Returns the next row under the keys, including a row that is being inserted. The pages of
    /// the row stay pinned, so call `seek` before waiting.
    pub fn next(&mut self) -> Found {
        let has_no_entry = |segments: &Segments| segments.keys().is_none();
        while !self.segments.as_ref().is_some_and(has_no_entry) {
            if self.fetch_next(self.scan, pg_sys::ScanDirection::ForwardScanDirection) {
                let found = self.fetched();
                if let (Found::Row, Some(segments)) = (found, &self.segments) {
                    segments.note_hit(self.table);
                }
                return found;
            }
            let segments = self.segments.as_mut();
            if !segments.is_some_and(|segments| segments.advance(self.table)) {
                break;
            }
            self.seek_segment();
        }
        self.clear();
        Found::Nothing
    }

    /// Returns the last row of the index, including a row that is being inserted. The look-up must
    /// have no key columns.
    pub fn last(&mut self) -> Found {
        self.seek(&mut []);
        let found = if self.fetch_next(self.scan, pg_sys::ScanDirection::BackwardScanDirection) {
            self.fetched()
        } else {
            Found::Nothing
        };
        self.unpin(found);
        found
    }

    /// Returns what the dirty snapshot reported about the row in the slot.
    fn fetched(&self) -> Found {
        if self.snapshot.xmin != pg_sys::InvalidTransactionId {
            return Found::InProgress(Writer {
                xid: self.snapshot.xmin,
                speculative_token: self.snapshot.speculativeToken,
                write: match self.is_deleted() {
                    true => Write::Retracts,
                    false => Write::Inserts,
                },
            });
        }
        if self.snapshot.xmax != pg_sys::InvalidTransactionId {
            return Found::InProgress(Writer {
                xid: self.snapshot.xmax,
                speculative_token: 0,
                write: Write::Deletes,
            });
        }
        Found::Row
    }

    /// Does what index_getnext_slot does, but creates the slot only when it is needed.
    fn fetch_next(
        &mut self,
        scan: pg_sys::IndexScanDesc,
        direction: pg_sys::ScanDirection::Type,
    ) -> bool {
        // SAFETY: the scan has its keys; the slot is of the table's kind. xs_heap_continue means
        // that the chain of the present index entry may contain another visible version.
        within(self.context, || unsafe {
            loop {
                if !(*scan).xs_heap_continue && pg_sys::index_getnext_tid(scan, direction).is_null()
                {
                    return false;
                }
                pause_point("lookup: before heap fetch");
                if self.slot.is_null() {
                    self.slot = pg_sys::table_slot_create(self.table.heap, std::ptr::null_mut());
                }
                if pg_sys::index_fetch_heap(scan, self.slot) {
                    return true;
                }
                self.met_invisible = true;
            }
        })
    }

    /// Finds the only row under a unique key.
    pub fn find(&mut self, keys: &mut [pg_sys::ScanKeyData]) -> Found {
        self.find_by(keys, Self::next)
    }

    /// Returns whether a row exists now under a unique key. Skips a row that another transaction is
    /// inserting.
    pub fn find_existing(&mut self, keys: &mut [pg_sys::ScanKeyData]) -> bool {
        let next_existing = |lookup: &mut Self| {
            if lookup.next_existing() {
                Found::Row
            } else {
                Found::Nothing
            }
        };
        self.find_by(keys, next_existing) != Found::Nothing
    }

    /// Finds the row that this transaction inserted under the keys. Another transaction may be
    /// inserting the same keys, although its insert will fail. The index entry of that insert may
    /// come first, so it is skipped.
    pub fn find_mine(&mut self, keys: &mut [pg_sys::ScanKeyData]) -> bool {
        self.seek(keys);
        loop {
            let found = self.next();
            if found == Found::Nothing || found == Found::Row && self.is_mine() {
                self.unpin(found);
                return found == Found::Row;
            }
        }
    }

    fn find_by(
        &mut self,
        keys: &mut [pg_sys::ScanKeyData],
        next: impl Fn(&mut Self) -> Found,
    ) -> Found {
        look_again(|| {
            self.seek(keys);
            let mut found = next(self);
            if found == Found::Nothing && self.met_invisible && self.rows_are_updated {
                found = self.find_latest(keys)?;
            }
            self.unpin(found);
            Some(found)
        })
    }

    /// Finds the row under the keys with a new snapshot, which sees at most one version of it.
    /// Returns what the dirty snapshot reports about that version, or `None` if the row was changed
    /// again in between.
    ///
    /// The scan fetches every version and tests its visibility itself: a scan with the new snapshot
    /// would take predicate locks in SERIALIZABLE.
    fn find_latest(&mut self, keys: &mut [pg_sys::ScanKeyData]) -> Option<Found> {
        // SAFETY: the snapshot is registered for the duration of the scan; SnapshotAnyData is a
        // constant of PostgreSQL.
        unsafe {
            // The snapshot must not see a row that this command deleted, because the dirty snapshot
            // does not see it either.
            pg_sys::CommandCounterIncrement();
            let latest = pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot());
            let any = &raw mut pg_sys::SnapshotAnyData;
            let scan = self.table.begin_scan(any, self.columns);
            pg_sys::index_rescan(
                scan,
                keys.as_mut_ptr(),
                keys.len() as i32,
                std::ptr::null_mut(),
                0,
            );
            let mut found = Some(Found::Nothing);
            while self.fetch_next(scan, pg_sys::ScanDirection::ForwardScanDirection) {
                if is_visible(self.table.heap, self.slot, latest) {
                    let dirty: pg_sys::Snapshot = &mut *self.snapshot;
                    found = is_visible(self.table.heap, self.slot, dirty).then(|| self.fetched());
                    break;
                }
            }
            pg_sys::index_endscan(scan);
            pg_sys::UnregisterSnapshot(latest);
            found
        }
    }

    /// Moves to the next row that exists now, and skips rows that other transactions are inserting.
    /// A row that another transaction is deleting still exists.
    pub fn next_existing(&mut self) -> bool {
        loop {
            match self.next() {
                Found::Nothing => return false,
                Found::Row => return true,
                Found::InProgress(_) if self.is_there() => return true,
                Found::InProgress(_) => (),
            }
        }
    }

    /// Returns whether the row that was found in progress is committed, that is, whether another
    /// transaction is changing or deleting it. Otherwise the row is being inserted.
    pub fn is_there(&self) -> bool {
        self.snapshot.xmin == pg_sys::InvalidTransactionId
    }

    /// Releases the pinned pages. The slot then contains a copy of the row.
    pub(super) fn unpin(&mut self, found: Found) {
        if found == Found::Nothing {
            return self.clear();
        }
        // SAFETY: the slot holds a row; the scan is open and keeps its keys.
        within(self.context, || unsafe {
            pg_sys::ExecMaterializeSlot(self.slot);
            pg_sys::index_rescan(
                self.scan,
                std::ptr::null_mut(),
                (*self.scan).numberOfKeys,
                std::ptr::null_mut(),
                0,
            );
        });
    }

    fn clear(&mut self) {
        if !self.slot.is_null() {
            // SAFETY: the slot was made by this look-up.
            unsafe { pg_sys::ExecClearTuple(self.slot) };
        }
    }

    /// Returns a column of the found row, counted from 1; `None` is NULL. A by-reference datum is
    /// valid until the next look-up.
    pub fn column(&self, number: i32) -> Option<Datum> {
        debug_assert!(number >= 1);
        // SAFETY: a row was found, so the slot holds a row, and the row has this column.
        unsafe {
            if i32::from((*self.slot).tts_nvalid) < number {
                pg_sys::slot_getsomeattrs_int(self.slot, number);
            }
            let i = number as usize - 1;
            (!*(*self.slot).tts_isnull.add(i)).then(|| *(*self.slot).tts_values.add(i))
        }
    }

    /// Returns all columns of the found row, copied into the current memory context and fetched
    /// from TOAST, because the table may be truncated before the columns are used.
    pub fn row(&self) -> Vec<Option<Datum>> {
        // SAFETY: a row was found, and its table is locked.
        unsafe { super::insert::copy_of(self.slot) }
    }

    /// Returns the found row, which is valid until the next look-up.
    fn tuple(&self) -> pg_sys::HeapTuple {
        // SAFETY: a row was found, so the slot holds a heap tuple.
        unsafe { pg_sys::ExecFetchSlotHeapTuple(self.slot, false, std::ptr::null_mut()) }
    }

    /// Returns whether a transaction has deleted the found row. The result can be outdated when
    /// the row is being deleted at this moment.
    fn is_deleted(&self) -> bool {
        const NOT_DELETED: u16 = (pg_sys::HEAP_XMAX_INVALID | pg_sys::HEAP_XMAX_LOCK_ONLY) as u16;
        // SAFETY: the slot holds a heap tuple. Its deleter may write these fields at the same time:
        // it clears the flags before it sets xmax.
        unsafe {
            let header = (*self.tuple()).t_data;
            let xmax = (&raw const (*header).t_choice.t_heap.t_xmax).read_volatile();
            let flags = (&raw const (*header).t_infomask).read_volatile();
            xmax != pg_sys::InvalidTransactionId && flags & NOT_DELETED == 0
        }
    }

    /// Returns whether this transaction inserted the found row. VACUUM leaves the xmin in a row
    /// that it freezes, and after a wraparound the id can be that of this transaction.
    pub fn is_mine(&self) -> bool {
        let (xmin, is_frozen) = self.xmin();
        // SAFETY: reads the state of the transaction.
        !is_frozen && unsafe { pg_sys::TransactionIdIsCurrentTransactionId(xmin) }
    }

    /// Returns the xmin in the header of the found row, and whether the row is frozen.
    fn xmin(&self) -> (pg_sys::TransactionId, bool) {
        // SAFETY: the slot holds a heap tuple. Its header begins with its xmin.
        unsafe {
            let header = (*self.tuple()).t_data;
            let is_frozen = (*header).t_infomask & FROZEN == FROZEN;
            ((*header).t_choice.t_heap.t_xmin, is_frozen)
        }
    }

    /// With `idem.wait_for_flush`, waits until the commit that inserted the found row is on disk. A
    /// commit with synchronous_commit = off is visible before it is on disk, so call this before a
    /// result depends on the row.
    pub fn wait_for_flush(&self) {
        if !WAIT_FOR_FLUSH.get() {
            return;
        }
        let (xmin, is_frozen) = self.xmin();
        if super::is_standby() || self.is_mine() || is_frozen && !is_recent(xmin) {
            return;
        }
        // SAFETY: the server has the status of xmin, unless the row was frozen long ago, which
        // `is_recent` checks. A row that was frozen recently is checked too, because VACUUM can
        // freeze a row before its commit is on disk.
        unsafe {
            let commit = pg_sys::TransactionIdGetCommitLSN(xmin);
            if commit != 0 && pg_sys::XLogNeedsFlush(commit) {
                pg_sys::XLogFlush(commit);
            }
        }
    }

    /// Deletes the found row. The table must be open for writing.
    pub fn delete(&mut self) {
        // SAFETY: a row was found, and no other transaction is writing it. Its TID is copied before
        // other code can move the scan.
        unsafe { delete_row(self.table.heap, (*self.slot).tts_tid) };
    }
}

/// Returns whether the server still has the status (committed or aborted) of this transaction.
fn is_recent(xid: pg_sys::TransactionId) -> bool {
    const EPOCH: u64 = 1 << 32;
    // SAFETY: reads a counter in shared memory.
    let next = unsafe { pg_sys::ReadNextFullTransactionId() }.value;
    let of_this_epoch = (next & !(EPOCH - 1)) | u64::from(xid.into_inner());
    let full = if of_this_epoch < next {
        Some(of_this_epoch)
    } else {
        of_this_epoch.checked_sub(EPOCH)
    };
    let Some(full) = full.filter(|_| xid >= pg_sys::FirstNormalTransactionId) else {
        return false;
    };
    let xid8 = Some(pg_sys::Datum::from(full));
    // SAFETY: the argument of pg_xact_status is an xid8, which is passed by value.
    unsafe { pgrx::direct_function_call_as_datum(pg_sys::pg_xact_status, &[xid8]) }.is_some()
}

impl Drop for Lookup<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // SAFETY: the scan and the slot were created by this look-up, and no other code uses them.
        unsafe {
            pg_sys::index_endscan(self.scan);
            if !self.slot.is_null() {
                pg_sys::ExecDropSingleTupleTableSlot(self.slot);
            }
        }
    }
}
