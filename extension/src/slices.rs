//! The open slices in which the rows of one destination can be.

use crate::destination::Destination;
use crate::errors::Result;
use crate::filters::SliceFilter;
use crate::pause::pause_point;
use crate::pg::Table;
use crate::ring::{self, Ring, Rings};
use pgrx::pg_sys;
use std::cell::OnceCell;

/// The slices of one destination: of the inbox, or with [`Rings::with_journal_slices`] of the
/// journal.
pub struct Slices {
    /// Slices that are only probed: those of the rings that the destination left, and the sealed
    /// slices. The oldest of a ring comes first.
    pub probed_only: Vec<Probed>,
    /// Slices that are probed and written, in this order.
    pub written: Vec<Written>,
}

/// A slice that is opened when it is first probed.
pub struct Probed {
    oid: pg_sys::Oid,
    /// The filter of a sealed slice.
    pub filter: Option<SliceFilter>,
    table: OnceCell<Table>,
}

impl Probed {
    fn new(oid: pg_sys::Oid, filter: Option<SliceFilter>) -> Self {
        Probed {
            oid,
            filter,
            table: OnceCell::new(),
        }
    }

    pub fn table(&self) -> &Table {
        self.table.get_or_init(|| Table::for_reading(self.oid))
    }
}

/// A slice that is open for inserts.
pub struct Written {
    pub table: Table,
    /// The filter of a slice that still takes claims. Each claimer adds its claim before it inserts
    /// it.
    pub hint: Option<SliceFilter>,
}

impl Slices {
    pub fn open(destination: &Destination, rings: &Rings) -> Self {
        let ring: Ring = destination.ring(rings);
        let sealed = |ring: &Ring| {
            let slices = ring.sealed().iter();
            let probed =
                slices.map(|&slice| Probed::new(slice.table, SliceFilter::of(ring, slice)));
            probed.collect::<Vec<_>>()
        };
        let left = destination.left_rings(rings).flat_map(|left| {
            // Other destinations of a ring that was left still write its current slice.
            let written = left.written().map(|slice| Probed::new(slice.table, None));
            sealed(&left).into_iter().chain(written.collect::<Vec<_>>())
        });
        pause_point("slices: before lock");
        Slices {
            probed_only: left.chain(sealed(&ring)).collect(),
            written: ring
                .written()
                .map(|slice| Written {
                    table: Table::for_writing(slice.table),
                    hint: SliceFilter::of(&ring, slice),
                })
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
        .map(|slice| slice.table)
        .collect()
}

/// Deletes the rows of a message from every slice in which they can be. `delete` deletes them from
/// one slice and returns whether there was one; its second argument is whether an earlier call has
/// deleted one. Returns whether a row was deleted.
pub fn delete_from_slices(
    destination: &Destination,
    entered: &Rings,
    kind: impl Fn(&Rings) -> Rings,
    mut delete: impl FnMut(pg_sys::Oid, bool) -> Result<bool>,
) -> Result<bool> {
    let mut any = false;
    let mut slices = slices_of(destination, &kind(entered));
    loop {
        let mut is_deleted = false;
        for &slice in &slices {
            is_deleted |= delete(slice, any | is_deleted)?;
        }
        any |= is_deleted;
        // While a ring opens, a row is in two slices. The ring may have begun to open since this
        // transaction entered it, and a row can be written after the look into its first slice and
        // before the look into the second one. So look again until nothing changes.
        let latest = slices_of(destination, &kind(&ring::reread()?));
        if !is_deleted && latest == slices {
            return Ok(any);
        }
        slices = latest;
    }
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
