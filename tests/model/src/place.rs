//! The places in which a claim can be: the segments of the slices.

use crate::{COPIER, Transaction};

/// The number of slices: current, next and two sealed slices. The rings have six sealed slices; two
/// are enough to have an oldest and a newest one.
pub const SLICES: u8 = 4;
/// The number of segments of a slice: three are enough for three states of the ring that write to
/// different segments.
pub const SEGMENTS: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    pub slice: u8,
    pub segment: u8,
}

/// A row of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    pub by: Transaction,
    /// The period in which the row was committed.
    pub committed: Option<u8>,
}

impl Row {
    pub fn is_committed(&self) -> bool {
        self.committed.is_some()
    }

    pub fn is_of_claim(&self) -> bool {
        self.by != COPIER
    }
}

/// The rows of the message. The unique index allows one in each place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rows([[Option<Row>; SEGMENTS as usize]; SLICES as usize]);

impl Rows {
    pub const NONE: Rows = Rows([[None; SEGMENTS as usize]; SLICES as usize]);

    pub fn at(&self, place: Place) -> Option<Row> {
        self.0[usize::from(place.slice)][usize::from(place.segment)]
    }

    pub fn insert(&mut self, place: Place, row: Row) {
        self.0[usize::from(place.slice)][usize::from(place.segment)] = Some(row);
    }

    /// The segment of the last entry of the index of this slice.
    pub fn last_segment(&self, slice: u8) -> Option<u8> {
        (0..SEGMENTS)
            .rev()
            .find(|&segment| self.at(Place { slice, segment }).is_some())
    }

    pub fn of_slice(&self, slice: u8) -> impl Iterator<Item = &Row> {
        self.0[usize::from(slice)].iter().flatten()
    }

    pub fn truncate(&mut self, slice: u8) {
        self.0[usize::from(slice)] = [None; SEGMENTS as usize];
    }

    pub fn all(&self) -> impl Iterator<Item = &Row> {
        self.0.iter().flatten().flatten()
    }

    /// Commits the rows of a transaction.
    pub fn commit(&mut self, by: Transaction, period: u8) {
        let rows = self.0.iter_mut().flatten().flatten();
        for row in rows.filter(|row| row.by == by) {
            row.committed = Some(period);
        }
    }

    /// Removes the rows that these transactions have not committed.
    pub fn roll_back(&mut self, is_by: impl Fn(Transaction) -> bool) {
        for row in self.0.iter_mut().flatten() {
            *row = row.filter(|row| row.is_committed() || !is_by(row.by));
        }
    }
}
