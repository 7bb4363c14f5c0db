//! Destinations: names interned as numbers, and the rings that decide how long their claims are
//! remembered.
//!
//! A cache of the backend maps names to numbers. The row of a new name is visible to every
//! transaction at once, and stays when its creator rolls back (`pg::permanent`). So no claim waits
//! for the first claim of its destination, except for the same message. While a publication
//! contains the table, the row stays part of its transaction, because subscribers get no row of a
//! transaction that rolls back. The number is the largest one in use plus one, read and inserted
//! under a lock that is released at once: a sequence would use up a number with each retry.
//!
//! `idem_configure` moves a destination to another ring. It locks all claims out, so no claimer
//! writes the ring that the destination has left. Claims look into that ring until it has forgotten
//! all claims from before that time.

use crate::errors::{Error, Result};
use crate::pg::{self, Found, Inserter, Lookup, Table, equals, insert_permanently, look_again};
use crate::ring::{Entered, RINGS, Ran, Ring, Rings, generation, interval, refreshed};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::cell::RefCell;
use std::collections::HashMap;

/// The ring of a destination that was never configured.
const STANDARD: i16 = 1;
/// The destination of all claims while the message identity is `id`.
const EVERYWHERE: &str = "*";
/// The maximum number of cached names. When it is reached, the backend clears its cache: the names
/// then probably contain message ids, and most of them are not used again.
const CACHED_NAMES: usize = 10_000;

/// A destination, as it was when the state of the rings was read.
#[derive(Debug, Clone, Copy)]
pub struct Destination {
    pub id: i32,
    ring: usize,
    /// For each ring, the time at which the destination left it.
    left: [Option<Ran>; RINGS],
}

impl Destination {
    /// Returns the ring in which the destination claims.
    pub fn ring<'r>(&self, rings: &'r Rings) -> &'r Ring {
        &rings.inbox[self.ring]
    }

    /// Returns the rings that the destination left and that still hold its earlier claims.
    pub fn left_rings<'r>(&self, rings: &'r Rings) -> impl Iterator<Item = &'r Ring> + use<'r> {
        let left = self.left;
        rings
            .inbox
            .iter()
            .zip(left)
            .filter_map(|(ring, left)| (left? >= ring.remembers_since).then_some(ring))
    }

    /// Returns whether a message sent at `sent_at` may have been claimed so long ago that the claim
    /// is forgotten.
    pub fn may_have_forgotten(&self, rings: &Rings, sent_at: pg_sys::TimestampTz) -> bool {
        let forgotten_by = |ring: &Ring| sent_at < rings.wall_clock(ring.remembers_since);
        forgotten_by(self.ring(rings))
            || rings.inbox.iter().zip(self.left).any(|(ring, left)| {
                left.is_some_and(|left| sent_at < rings.wall_clock(left)) && forgotten_by(ring)
            })
    }
}

thread_local! {
    static CACHE: RefCell<(u64, HashMap<String, Destination>)> = RefCell::default();
}

/// Returns the destination with this name and creates it if it does not exist. The creation is
/// permanent: other transactions use the destination at once, and a rollback does not undo it. So a
/// claim never waits for the transaction of the first claim of its destination.
pub fn intern(name: &str, _rings: &Entered) -> Result<Destination> {
    let name = identity_name(name)?;
    if let Some(destination) = cached(name) {
        return Ok(destination);
    }
    let table = open(true)?;
    let mut lookup = Lookup::new(&table, 1);
    look_again(|| match find_or_create(name, &table, &mut lookup) {
        Ok(Found::Row) => Some(Ok(remember(name, &lookup))),
        Ok(Found::Nothing) => None,
        // An administrator is changing the row, or the table is published.
        Ok(Found::InProgress(writer)) => {
            writer.wait();
            None
        }
        Err(error) => Some(Err(error)),
    })
}

/// Finds the destination, or creates it and returns `Nothing`.
fn find_or_create(name: &str, table: &Table, lookup: &mut Lookup) -> Result<Found> {
    let mut key = name_key(name);
    if let Found::Row = lookup.find(&mut key) {
        return Ok(Found::Row);
    }
    // A row is in progress for a moment while another session creates it. So look again under the
    // lock of the creator.
    pg::with_exclusive_lock(table.oid(), || {
        let found = lookup.find(&mut key);
        if found == Found::Nothing {
            create(name, table)?;
        }
        Ok(found)
    })
}

/// Returns the destination with this name, if it is committed or this transaction created it. Works
/// on a standby.
pub fn find(name: &str) -> Result<Option<Destination>> {
    let name = identity_name(name)?;
    if let Some(known) = cached(name) {
        return Ok(Some(known));
    }
    let table = open(false)?;
    let mut lookup = Lookup::new(&table, 1);
    Ok(lookup
        .find_existing(&mut name_key(name))
        .then(|| remember(name, &lookup)))
}

/// Returns the destination name that is part of an identity: the name itself, or the name that
/// represents all destinations.
pub fn identity_name(name: &str) -> Result<&str> {
    idem_core::check_destination(name)?;
    Ok(if refreshed()?.id_is_identity {
        EVERYWHERE
    } else {
        name
    })
}

fn cached(name: &str) -> Option<Destination> {
    CACHE.with_borrow(|(at, names)| {
        if *at == generation() {
            names.get(name).copied()
        } else {
            None
        }
    })
}

fn open(for_writing: bool) -> Result<Table> {
    Table::with_index(destination_table()?, c"destination_name_key", for_writing)
}

fn name_key(name: &str) -> [pg_sys::ScanKeyData; 1] {
    let name = name.into_datum().unwrap_or(pg_sys::Datum::from(0));
    [equals(1, pg_sys::F_TEXTEQ, name)]
}

/// Reads the found row and caches it. A row that this transaction wrote is not cached, because it
/// may still roll back.
fn remember(name: &str, found: &Lookup) -> Destination {
    let left = |number| found.column(number).map(interval);
    let ring = usize::try_from(number(found, 2) as i16).ok();
    let Some(ring) = ring.filter(|ring| *ring < RINGS) else {
        Error::Corrupt("a destination has an unknown ring").raise()
    };
    let destination = Destination {
        id: number(found, 1) as i32,
        ring,
        left: [left(3), left(4), left(5)],
    };
    if !found.is_mine() {
        let now = generation();
        CACHE.with_borrow_mut(|(at, names)| {
            if *at != now || names.len() >= CACHED_NAMES {
                names.clear();
                *at = now;
            }
            names.insert(name.to_owned(), destination);
        });
    }
    destination
}

/// Returns a number in the found row.
fn number(found: &Lookup, column: i32) -> usize {
    match found.column(column) {
        Some(datum) => datum.value(),
        None => Error::Corrupt("a destination lacks a value").raise(),
    }
}

/// Creates a destination, unless the name is taken.
fn create(name: &str, table: &Table) -> Result<()> {
    let id = unused_id()?;
    let row = [
        id.into_datum(),
        STANDARD.into_datum(),
        None,
        None,
        None,
        name.into_datum(),
        None,
    ];
    // Subscribers must not miss a row that other rows refer to.
    if pg::is_published(table) {
        Inserter::new(table).insert(&row);
    } else {
        insert_permanently(table, &row);
    }
    Ok(())
}

/// Returns one more than the largest id in use, including ids that running transactions have
/// inserted. Only one transaction at a time may run this function.
fn unused_id() -> Result<i32> {
    let table = Table::for_writing(destination_table()?);
    let mut last = Lookup::new(&table, 0);
    let mut id = match last.last() {
        Found::Nothing => 0,
        _ => number(&last, 1) as i32,
    };
    // A scan can miss the last row while idem_configure updates it. A look-up by id cannot miss the
    // row, so look up each id before it is used.
    let mut by_id = Lookup::new(&table, 1);
    loop {
        id = id.checked_add(1).ok_or(Error::NoDestinationLeft)?;
        let key = equals(1, pg_sys::F_INT4EQ, id.into());
        if by_id.find(&mut [key]) == Found::Nothing {
            return Ok(id);
        }
    }
}

fn destination_table() -> Result<pg_sys::Oid> {
    pg::relation(c"destination")
}
