//! Look-ups in a slice of the inbox. The unique index of a slice begins with the segment of the
//! row, so a look-up reads one segment after the other.
//!
//! A slice can have rows in every segment, because COPY, logical replication and pg_restore insert
//! the segments of another server. So a look-up reads all segments from that of the last entry of
//! the index down to 0, and not those up to the present segment of the ring.

use super::Table;
use super::walk::equals;
use pgrx::pg_sys;
use std::cell::Cell;

/// A part of a slice. Claims are inserted into the newest segment of their slice.
pub type Segment = i16;

/// The number of columns of the index: segment, key, destination.
pub(super) const COLUMNS: usize = 3;

thread_local! {
    /// The table and the segment of the row that was found last.
    static LAST_HIT: Cell<Option<(pg_sys::Oid, Segment)>> = const { Cell::new(None) };
}

/// The segments that a look-up reads, in their order.
pub(super) struct Segments {
    reads: Reads,
    /// The key and the destination.
    keys: Option<[pg_sys::ScanKeyData; COLUMNS - 1]>,
    /// The segment that is read first, because a row was found there.
    first: Option<Segment>,
    /// Whether only the first segment was read until now.
    is_at_first: bool,
    /// The segment that is being read.
    present: Option<Segment>,
}

/// Which segments a look-up reads.
#[derive(Clone, Copy)]
pub(super) enum Reads {
    One(Segment),
    All,
}

impl Segments {
    pub(super) fn new(reads: Reads) -> Self {
        Segments {
            reads,
            keys: None,
            first: None,
            is_at_first: true,
            present: None,
        }
    }

    /// Begins with the segment in which the last row of the table was found, so that duplicates in
    /// the order of their first delivery need one look-up each.
    pub(super) fn begin(&mut self, table: &Table, keys: &[pg_sys::ScanKeyData]) {
        self.keys = keys.try_into().ok();
        // Without keys every look-up would find nothing, and every message would be claimed again.
        if self.keys.is_none() {
            pgrx::error!("a look-up in a slice of the inbox needs a key and a destination");
        }
        let hit = LAST_HIT.get().filter(|(hit, _)| *hit == table.oid());
        self.first = match self.reads {
            Reads::One(segment) => Some(segment),
            Reads::All => hit.map(|(_, segment)| segment),
        };
        self.present = self.first;
        self.is_at_first = true;
        if self.present.is_none() {
            self.advance(table);
        }
    }

    /// Moves to the next segment. Returns false at the end.
    pub(super) fn advance(&mut self, table: &Table) -> bool {
        let below = |segment: Segment| (segment > 0).then(|| segment - 1);
        let is_at_first = std::mem::take(&mut self.is_at_first);
        let next = match self.reads {
            Reads::One(_) => None,
            Reads::All if is_at_first => last_segment(table),
            Reads::All => self.present.and_then(below),
        };
        self.present = match next {
            Some(first) if next == self.first => below(first),
            next => next,
        };
        self.present.is_some()
    }

    /// Returns the scan keys in the present segment.
    pub(super) fn keys(&self) -> Option<[pg_sys::ScanKeyData; COLUMNS]> {
        let segment = equals(1, pg_sys::F_INT2EQ, self.present?.into());
        let [key, destination] = self.keys?.map(|key| pg_sys::ScanKeyData {
            sk_attno: key.sk_attno + 1,
            ..key
        });
        Some([segment, key, destination])
    }

    /// Notes that a row was found in the present segment.
    pub(super) fn note_hit(&self, table: &Table) {
        LAST_HIT.set(self.present.map(|segment| (table.oid(), segment)));
    }
}

/// Returns the segment of the last entry of the index, or `None` if the index has no entry.
fn last_segment(table: &Table) -> Option<Segment> {
    // SAFETY: table and index are open. The scan returns the entries of the index without their
    // rows. The first column is an int2 that is not null, so it begins behind the header.
    unsafe {
        let snapshot = &raw mut pg_sys::SnapshotAnyData;
        let scan = table.begin_scan(snapshot, 0);
        (*scan).xs_want_itup = true;
        pg_sys::index_rescan(scan, std::ptr::null_mut(), 0, std::ptr::null_mut(), 0);
        let backward = pg_sys::ScanDirection::BackwardScanDirection;
        let is_found = !pg_sys::index_getnext_tid(scan, backward).is_null();
        let segment = is_found.then(|| (*scan).xs_itup.add(1).cast::<Segment>().read());
        pg_sys::index_endscan(scan);
        segment
    }
}
