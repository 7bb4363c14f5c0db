//! The slices of a ring in the order of their age.

use crate::errors::{Error, Result};
use pgrx::pg_sys;

/// The largest number of slices of a ring. `idem.ring.slices` says how many a ring has.
const MAX_SLICES: usize = 8;
/// A ring has a current slice, a next slice and at least two sealed slices.
const MIN_SLICES: usize = 4;
/// The positions of the current and of the next slice. The sealed slices follow, the oldest first.
const CURRENT: usize = 0;
const NEXT: usize = 1;
const SEALED: usize = 2;

/// The tables of the slices: current, next, and the sealed slices, the oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlicesByAge {
    tables: [pg_sys::Oid; MAX_SLICES],
    count: usize,
}

impl SlicesByAge {
    /// Finds the tables of the slices with these numbers, in this order. `find` returns the table
    /// of the slice with a number.
    pub fn new(numbers: &[i16], find: impl Fn(i16) -> Result<pg_sys::Oid>) -> Result<Self> {
        if !(MIN_SLICES..=MAX_SLICES).contains(&numbers.len()) {
            return Err(Error::Corrupt("a ring has a wrong number of slices"));
        }
        let mut tables = [pg_sys::InvalidOid; MAX_SLICES];
        for (table, &number) in tables.iter_mut().zip(numbers) {
            *table = find(number)?;
        }
        Ok(SlicesByAge {
            tables,
            count: numbers.len(),
        })
    }

    pub fn current(&self) -> pg_sys::Oid {
        self.tables[CURRENT]
    }

    pub fn next(&self) -> pg_sys::Oid {
        self.tables[NEXT]
    }

    /// Returns the slices that no longer take claims, the oldest first.
    pub fn sealed(&self) -> &[pg_sys::Oid] {
        &self.tables[SEALED..self.count]
    }

    /// Returns the slice that was current before the last rotation.
    pub fn newest_sealed(&self) -> pg_sys::Oid {
        self.tables[self.count - 1]
    }

    /// Returns every slice.
    pub fn all(&self) -> &[pg_sys::Oid] {
        &self.tables[..self.count]
    }
}
