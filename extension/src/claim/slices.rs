//! The slices that the rows of one destination stand in, open.

use crate::destination::Destination;
use crate::pg::Table;
use crate::ring::{Ring, Rings};

/// The slices of one destination: of the inbox, or with [`Rings::of_calls`] those of the journal.
pub struct Slices {
    /// Looked at only, the oldest first.
    pub sealed: Vec<Table>,
    /// Looked at and written, in this order.
    pub written: Vec<Table>,
}

impl Slices {
    pub fn open(destination: &Destination, rings: &Rings) -> Self {
        let ring: Ring = destination.ring(rings);
        Slices {
            sealed: destination
                .left_rings(rings)
                .flat_map(|left| left.probed().collect::<Vec<_>>())
                .chain(ring.sealed())
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
