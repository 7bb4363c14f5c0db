//! Destinations: names interned as numbers, and how long each remembers.

use crate::errors::Result;
use crate::pg::{self, Found, Lookup, Table, insert_unique, wait_for};
use crate::ring::{RINGS, Ran, Ring, Rings, generation, interval};
use crate::settings::{MESSAGE_IDENTITY, MessageIdentity};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::cell::RefCell;
use std::collections::HashMap;

/// The ring of a destination that nobody has configured.
const STANDARD: i16 = 1;
/// With `idem.message_identity = id` all claims are of this destination.
const EVERYWHERE: &str = "*";
/// A backend that sees more names than this starts over: somebody puts ids into them.
const CACHED_NAMES: usize = 10_000;

/// A destination, as of the state of the rings that it was read with.
#[derive(Debug, Clone, Copy)]
pub struct Destination {
    pub id: i32,
    ring: usize,
    /// By ring: when the destination left it, if ever.
    left: [Option<Ran>; RINGS],
}

impl Destination {
    /// The ring that takes its claims.
    pub fn ring(&self, rings: &Rings) -> Ring {
        rings.inbox[self.ring]
    }

    /// The rings it has left which still remember claims from before.
    pub fn left_rings(&self, rings: &Rings) -> impl Iterator<Item = Ring> {
        let left = self.left;
        rings
            .inbox
            .into_iter()
            .zip(left)
            .filter_map(|(ring, left)| (left? >= ring.remembers_since).then_some(ring))
    }

    /// Whether a message sent at `sent_at` may have been claimed so long ago that the claim is forgotten.
    pub fn may_have_forgotten(&self, rings: &Rings, sent_at: pg_sys::TimestampTz) -> bool {
        let forgotten_by = |ring: &Ring| sent_at < rings.wall_clock(ring.remembers_since);
        forgotten_by(&self.ring(rings))
            || rings
                .inbox
                .iter()
                .zip(self.left)
                .any(|(ring, left)| left.is_some_and(|left| sent_at < rings.wall_clock(left)) && forgotten_by(ring))
    }
}

thread_local! {
    static CACHE: RefCell<(u64, HashMap<String, Destination>)> = RefCell::default();
}

/// What interning a name gave.
pub enum Interned {
    Known(Destination),
    /// Another transaction is creating it, and the caller does not wait.
    InProgress,
}

/// The destination of that name, created when it is new; a rolled back transaction takes its creation with it. The
/// caller has entered the rings.
pub fn intern(name: &str, wait: bool) -> Result<Interned> {
    let name = identity_name(name)?;
    if let Some(known) = cached(name) {
        return Ok(Interned::Known(known));
    }
    let table = open(true)?;
    let mut lookup = Lookup::new(&table, 1);
    loop {
        match lookup.find(&mut name_key(name)) {
            Found::Row => return Ok(Interned::Known(remember(name, &lookup))),
            Found::InProgress { .. } if !wait => return Ok(Interned::InProgress),
            Found::InProgress { xid, speculative_token } => {
                lookup.seek(&mut name_key(name));
                wait_for(xid, speculative_token);
            }
            Found::Nothing => {
                let id = next_id()?;
                let row = [
                    id.into_datum(),
                    STANDARD.into_datum(),
                    None,
                    None,
                    None,
                    name.into_datum(),
                    None,
                ];
                if insert_unique(&table, &row) {
                    // Not remembered: it must not outlive a rollback.
                    return Ok(Interned::Known(Destination {
                        id,
                        ring: STANDARD as usize,
                        left: [None; RINGS],
                    }));
                }
            }
        }
        pgrx::check_for_interrupts!();
    }
}

/// The destination of that name, if there is one that can be seen. Works on a standby.
pub fn find(name: &str) -> Result<Option<Destination>> {
    let name = identity_name(name)?;
    if let Some(known) = cached(name) {
        return Ok(Some(known));
    }
    let table = open(false)?;
    let mut lookup = Lookup::new(&table, 1);
    lookup.seek(&mut name_key(name));
    Ok(lookup.next_settled().then(|| remember(name, &lookup)))
}

/// The name that a destination goes by in an identity: its own, or that of all of them.
pub fn identity_name(name: &str) -> Result<&str> {
    idem_core::check_destination(name)?;
    Ok(match MESSAGE_IDENTITY.get() {
        MessageIdentity::IdAndDestination => name,
        MessageIdentity::Id => EVERYWHERE,
    })
}

fn cached(name: &str) -> Option<Destination> {
    CACHE.with_borrow(|(at, names)| if *at == generation() { names.get(name).copied() } else { None })
}

fn open(for_writing: bool) -> Result<Table> {
    let oid = |name| pg::relation_oid(name).ok_or(crate::errors::Error::NotInstalled);
    Ok(Table::with_index(
        oid(c"destination")?,
        oid(c"destination_name_key")?,
        for_writing,
    ))
}

fn name_key(name: &str) -> [pg_sys::ScanKeyData; 1] {
    // SAFETY: ScanKeyInit fills the zeroed key; the datum lives in the current memory context. The column has the
    // collation "C", which is that of ScanKeyInit.
    unsafe {
        let mut key: [pg_sys::ScanKeyData; 1] = std::mem::zeroed();
        if let Some(datum) = name.into_datum() {
            pg_sys::ScanKeyInit(
                &mut key[0],
                1,
                pg_sys::BTEqualStrategyNumber as u16,
                pg_sys::F_TEXTEQ.into(),
                datum,
            );
        }
        key
    }
}

/// Reads the found row; keeps it unless this transaction wrote it, which may still roll back.
fn remember(name: &str, found: &Lookup) -> Destination {
    let left = |number| found.column(number).map(interval);
    let destination = Destination {
        id: found.column(1).map_or(0, |d| d.value() as i32),
        ring: found.column(2).map_or(STANDARD as usize, |d| d.value() & 3).min(RINGS - 1),
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

fn next_id() -> Result<i32> {
    let sequence = pg::relation_oid(c"destination_id_seq").ok_or(crate::errors::Error::NotInstalled)?;
    Ok(pg::next_value(sequence) as i32)
}
