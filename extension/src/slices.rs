//! The open slices in which the rows of one destination can be.

use crate::destination::Destination;
use crate::errors::Result;
use crate::filters::SliceFilter;
use crate::pause::pause_point;
use crate::pg::{Segment, Table};
use crate::ring::{self, Ring, Rings, Slice};
use idem_core::filter::ClaimHash;
use pgrx::pg_sys;
use std::borrow::Cow;
use std::cell::OnceCell;
use std::rc::Rc;

/// The slices of one destination: of the inbox, or with [`Rings::journal_slices`] of the
/// journal.
pub struct Slices {
    /// Slices that are only probed: those of the rings that the destination left, and the sealed
    /// slices. The oldest of a ring comes first.
    pub probed_only: Vec<Probed>,
    /// The segments that are probed and written, in this order.
    pub written: Vec<Written>,
}

/// A slice that is opened when it is first probed.
pub struct Probed {
    pub oid: pg_sys::Oid,
    pub filter: Option<SliceFilter>,
    table: OnceCell<Table>,
}

impl Probed {
    fn new(ring: &Ring, slice: Slice) -> Self {
        Probed {
            oid: slice.table,
            filter: SliceFilter::of(ring, slice),
            table: OnceCell::new(),
        }
    }

    /// Returns whether the claim is certainly not in the slice.
    pub fn excludes(&self, hash: Option<ClaimHash>) -> bool {
        excludes(self.filter, hash)
    }

    pub fn table(&self) -> &Table {
        self.table.get_or_init(|| Table::for_reading(self.oid))
    }
}

/// A slice that is open for inserts into one of its segments.
pub struct Written {
    pub table: Table,
    pub segment: Segment,
    /// Whether the segment before this one is in the same slice.
    pub is_repeated: bool,
    /// The filter of a slice that still takes claims. Each claimer adds its claim before it inserts
    /// it.
    pub hint: Option<SliceFilter>,
}

/// Returns whether the claim is certainly not in the slice with this filter.
pub fn excludes(filter: Option<SliceFilter>, hash: Option<ClaimHash>) -> bool {
    filter
        .zip(hash)
        .is_some_and(|(filter, hash)| filter.excludes(hash))
}

impl Slices {
    pub fn open(destination: &Destination, rings: &Rings) -> Self {
        let ring = destination.ring(rings);
        let mut probed_only = slices_of_left_rings(destination, rings);
        let sealed = ring.sealed().iter();
        probed_only.extend(sealed.map(|&slice| Probed::new(ring, slice)));
        pause_point("slices: before lock");
        let written = ring.written().map(|at| Written {
            table: Table::for_writing(at.slice.table),
            segment: at.segment,
            is_repeated: at.is_repeated,
            hint: SliceFilter::of(ring, at.slice),
        });
        Slices {
            probed_only,
            written: written.collect(),
        }
    }
}

/// Returns the slices of the rings that the destination left. Other destinations still write the
/// current slice of such a ring. No transaction has claimed a message of this destination in it
/// since `idem_configure`, which locks all claims out. So its filter has every claim of the
/// destination.
fn slices_of_left_rings(destination: &Destination, rings: &Rings) -> Vec<Probed> {
    let left = destination.left_rings(rings);
    left.flat_map(probed_slices).collect()
}

fn probed_slices(ring: &Ring) -> Vec<Probed> {
    let slices = ring.probed().into_iter();
    slices.map(|slice| Probed::new(ring, slice)).collect()
}

/// Returns every slice in which a row of this destination can be. Within each ring the oldest slice
/// comes first.
pub fn slices_of(destination: &Destination, rings: &Rings) -> Vec<Probed> {
    let mut slices = slices_of_left_rings(destination, rings);
    slices.extend(probed_slices(destination.ring(rings)));
    slices
}

/// Returns the tables of [`slices_of`].
pub fn tables_of(destination: &Destination, rings: &Rings) -> Vec<pg_sys::Oid> {
    let slices = slices_of(destination, rings).into_iter();
    slices.map(|slice| slice.oid).collect()
}

/// Returns every slice in which a reader can find a row of this destination: the slices of
/// `latest`, and then the other slices of the states with which this transaction entered the rings.
/// Within each state the newest slice of the present ring comes first, so that a reader finds the
/// present claim before a forgotten one. `kind` chooses the slices of the inbox or of the journal.
pub fn slices_to_read(
    destination: &Destination,
    latest: &Rc<Rings>,
    kind: impl Fn(&Rings) -> Cow<Rings>,
) -> Result<Vec<Probed>> {
    let mut slices: Vec<Probed> = Vec::new();
    for rings in std::iter::once(Rc::clone(latest)).chain(ring::entered()?) {
        for slice in slices_of(destination, &kind(&rings)).into_iter().rev() {
            if slices.iter().all(|known| known.oid != slice.oid) {
                slices.push(slice);
            }
        }
    }
    Ok(slices)
}
