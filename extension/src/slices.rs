//! The open slices in which the rows of one destination can be.

use crate::destination::Destination;
use crate::errors::Result;
use crate::pg::Table;
use crate::ring::{self, Ring, Rings};
use pgrx::pg_sys;

/// The slices of one destination: of the inbox, or with [`Rings::with_journal_slices`] of the
/// journal.
pub struct Slices {
    /// Slices that are only probed: those of the rings that the destination left, and the sealed
    /// slices. The oldest of a ring comes first.
    pub probed_only: Vec<Table>,
    /// Slices that are probed and written, in this order.
    pub written: Vec<Table>,
}

impl Slices {
    pub fn open(destination: &Destination, rings: &Rings) -> Self {
        let ring: Ring = destination.ring(rings);
        Slices {
            probed_only: destination
                .left_rings(rings)
                .flat_map(|left| left.probed())
                .chain(ring.sealed().iter().copied())
                .map(Table::for_reading)
                .collect(),
            written: [Some(ring.current()), ring.next_if_opening()]
                .into_iter()
                .flatten()
                .map(Table::for_writing)
                .collect(),
        }
    }
}

/// Returns every slice in which a row of this destination can be. Within each ring the oldest slice
/// comes first.
pub fn slices_of(destination: &Destination, rings: &Rings) -> Vec<pg_sys::Oid> {
    destination
        .left_rings(rings)
        .chain([destination.ring(rings)])
        .flat_map(|ring| ring.probed())
        .collect()
}

/// Returns every slice in which a reader can find a row of this destination: the slices of
/// `latest`, and then the other slices of the states with which this transaction entered the rings.
/// Within each state the newest slice of the present ring comes first, so that a reader finds the
/// present claim before a forgotten one. `kind` chooses the slices of the inbox or of the journal.
pub fn slices_to_read(
    destination: &Destination,
    latest: &Rings,
    kind: impl Fn(&Rings) -> Rings,
) -> Result<Vec<pg_sys::Oid>> {
    let mut slices = Vec::new();
    for rings in std::iter::once(*latest).chain(ring::entered()?) {
        for slice in slices_of(destination, &kind(&rings)).into_iter().rev() {
            if !slices.contains(&slice) {
                slices.push(slice);
            }
        }
    }
    Ok(slices)
}
