//! The slices of a ring in the order of their age.

use super::clock::Ran;
use crate::errors::{Error, Result};
use pgrx::pg_sys;

/// The largest number of slices of a ring. `idem.ring.slices` says how many a ring has.
pub const MAX_SLICES: usize = 8;
/// A ring has a current slice, a next slice and at least two sealed slices.
const MIN_SLICES: usize = 4;
/// The positions of the current and of the next slice. The sealed slices follow, the oldest first.
const CURRENT: usize = 0;
const NEXT: usize = 1;
const SEALED: usize = 2;

/// A slice of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    pub table: pg_sys::Oid,
    pub number: i16,
    /// When the slice began to take claims. No two fillings of a slice have the same time.
    pub opened: Ran,
}

/// The slices: current, next, and the sealed slices, the oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlicesByAge {
    slices: [Slice; MAX_SLICES],
    count: usize,
}

impl SlicesByAge {
    /// Finds the slices with these numbers, in this order. `find` returns the slice with a number.
    pub fn new(numbers: &[i16], find: impl Fn(i16) -> Result<Slice>) -> Result<Self> {
        const NONE: Slice = Slice {
            table: pg_sys::InvalidOid,
            number: 0,
            opened: 0,
        };
        if !(MIN_SLICES..=MAX_SLICES).contains(&numbers.len()) {
            return Err(Error::Corrupt("a ring has a wrong number of slices"));
        }
        let mut slices = [NONE; MAX_SLICES];
        for (slice, &number) in slices.iter_mut().zip(numbers) {
            *slice = find(number)?;
        }
        Ok(SlicesByAge {
            slices,
            count: numbers.len(),
        })
    }

    pub fn current(&self) -> Slice {
        self.slices[CURRENT]
    }

    pub fn next(&self) -> Slice {
        self.slices[NEXT]
    }

    /// Returns the slices that no longer take claims, the oldest first.
    pub fn sealed(&self) -> &[Slice] {
        &self.slices[SEALED..self.count]
    }

    /// Returns the slice that was current before the last rotation.
    pub fn newest_sealed(&self) -> Slice {
        self.slices[self.count - 1]
    }

    /// Returns every slice.
    pub fn all(&self) -> &[Slice] {
        &self.slices[..self.count]
    }
}
