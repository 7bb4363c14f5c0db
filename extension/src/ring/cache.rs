//! Caches the state of the rings in each backend. A backend reads the state again after an
//! invalidation of `idem.ring` or of another table in `Tables`.
//!
//! A claim locks `idem.ring` ROW EXCLUSIVE. Taking that lock processes the invalidations of every
//! rotation step that was committed before, so the cached state is at least as new as the lock.
//! The next step of the rotation lists the transactions that hold the lock when it is first tried,
//! and waits for them. So a claim uses the newest state of a ring or the state one step before it.

use super::clock::{Clock, Ran};
use super::installation::Installation;
use super::interval::{interval, intervals};
use super::version::check_version;
use super::{Opening, RINGS, Ring, Rings, Slice, SlicesByAge};
use crate::errors::{Error, Result};
use crate::pg;
use crate::pg::{Segment, for_each_row};
use crate::transaction_end::{Watcher, watch_transactions};
use pgrx::FromDatum;
use pgrx::pg_sys;
use pgrx::pg_sys::Datum;
use pgrx::prelude::*;
use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::ops::Deref;
use std::rc::Rc;

thread_local! {
    static GENERATION: Cell<u64> = const { Cell::new(1) };
    static REGISTERED: Cell<bool> = const { Cell::new(false) };
    static TABLES: Cell<Option<(u64, Tables)>> = const { Cell::new(None) };
    static RINGS_AT: RefCell<Option<(u64, Rc<Rings>)>> = const { RefCell::new(None) };
    /// The `generation` at which this transaction last entered the rings; 0 if it has not.
    static ENTERED_AT: Cell<u64> = const { Cell::new(0) };
    /// The states that this transaction has entered, each with its `idem.ring`.
    static ENTERED: RefCell<Vec<(pg_sys::Oid, Rc<Rings>)>> = const { RefCell::new(Vec::new()) };
}

#[derive(Clone, Copy)]
struct Tables {
    ring: pg_sys::Oid,
    installation: pg_sys::Oid,
    destination: pg_sys::Oid,
    pending_rotation: pg_sys::Oid,
    payload_rotation: pg_sys::Oid,
    loaded_table: pg_sys::Oid,
}

impl Tables {
    fn find() -> Result<Self> {
        Ok(Tables {
            ring: pg::relation(c"ring")?,
            installation: pg::relation(c"installation")?,
            destination: pg::relation(c"destination")?,
            pending_rotation: pg::relation(c"pending_rotation")?,
            payload_rotation: pg::relation(c"payload_rotation")?,
            loaded_table: pg::relation(c"loaded_table")?,
        })
    }

    fn has(&self, relation: pg_sys::Oid) -> bool {
        [
            self.ring,
            self.installation,
            self.destination,
            self.pending_rotation,
            self.payload_rotation,
            self.loaded_table,
        ]
        .contains(&relation)
    }
}

/// Returns a number that changes whenever one of the tables in `Tables` may have changed. A value
/// that was cached under the present number is valid.
pub fn generation() -> u64 {
    GENERATION.get()
}

/// Only increments the number, because the callback can run in the middle of any code.
#[pg_guard]
unsafe extern "C-unwind" fn on_relcache_invalidation(_arg: Datum, relation: pg_sys::Oid) {
    let hit = match TABLES.get() {
        Some((_, tables)) => tables.has(relation) || relation == pg_sys::InvalidOid,
        None => true,
    };
    if hit {
        GENERATION.set(GENERATION.get() + 1);
    }
}

/// Returns the OID of `idem.ring`. Fails with 58000 if the extension is not installed.
pub fn ring_table() -> Result<pg_sys::Oid> {
    tables().map(|t| t.ring)
}

fn tables() -> Result<Tables> {
    if !REGISTERED.get() {
        // SAFETY: this is called once in each backend; the callback lives as long as the library,
        // which is never unloaded.
        unsafe {
            pg_sys::CacheRegisterRelcacheCallback(Some(on_relcache_invalidation), Datum::from(0))
        };
        REGISTERED.set(true);
    }
    if let Some((at, tables)) = TABLES.get()
        && at == generation()
    {
        return Ok(tables);
    }
    let tables = Tables::find()?;
    TABLES.set(Some((generation(), tables)));
    Ok(tables)
}

/// The state of the rings for a transaction that has entered them: it holds the lock on
/// `idem.ring`. The fence keeps this state correct until the transaction ends. A later call of
/// [`enter`] may return a newer state.
pub struct Entered(Rc<Rings>);

impl Deref for Entered {
    type Target = Rings;

    fn deref(&self) -> &Rings {
        &self.0
    }
}

/// Enters the rings: locks `idem.ring` ROW EXCLUSIVE until the end of the transaction. Fails with
/// 58000 while the database is being restored.
pub fn enter() -> Result<Entered> {
    let rings = locked(pg_sys::RowExclusiveLock as pg_sys::LOCKMODE)?;
    if ENTERED_AT.replace(generation()) != generation() {
        remember(ring_table()?, Rc::clone(&rings));
    }
    Ok(Entered(rings))
}

/// Adds a state to those that [`entered`] returns.
fn remember(table: pg_sys::Oid, rings: Rc<Rings>) {
    watch_transactions(Watcher::Rings, |_| {
        ENTERED_AT.set(0);
        ENTERED.with_borrow_mut(Vec::clear);
    });
    ENTERED.with_borrow_mut(|entered| {
        let is_new =
            |(of, last): &(pg_sys::Oid, Rc<Rings>)| *of != table || !rings.has_slices_of(last);
        if entered.last().is_none_or(is_new) {
            entered.push((table, rings));
        }
    });
}

/// Returns the states with which functions of this transaction have entered the rings, the newest
/// first. The fence keeps the slices of these states for the transaction, although the latest state
/// may no longer have one of them. So a reader also looks into these slices, after those of
/// [`look`]: a duplicate must find the claim and the effects that an earlier function call of its
/// transaction has found.
///
/// If the transaction entered in a savepoint that was rolled back, no fence keeps the slices of
/// that state, and they may already hold newer rows. A reader may look into them: each row belongs
/// to a claim, and the slices of the latest state are searched first. The events of a call are
/// joined from all slices, so `journal/inspect.rs` checks their numbers.
///
/// Writers do not use these states, and neither does [`refreshed`]: the tables of pending messages
/// and of payloads are protected by other locks, and must be those of the latest state.
///
/// If the extension was dropped and created again since a state was entered, the slices of that
/// state no longer exist, and it is not returned.
pub fn entered() -> Result<Vec<Rc<Rings>>> {
    let table = ring_table()?;
    Ok(ENTERED.with_borrow(|entered| {
        let of_table = entered.iter().rev().filter(|(of, _)| *of == table);
        of_table.map(|(_, rings)| Rc::clone(rings)).collect()
    }))
}

/// Returns the state for reading. Works on a standby. Rotations do not wait for readers, so a
/// reader can miss a claim that is made during the read. This is safe, because such a claim counts
/// as later than the read. Fails with 58000 while the database is being restored.
pub fn look() -> Result<Rc<Rings>> {
    locked(pg_sys::AccessShareLock as pg_sys::LOCKMODE)
}

/// Reads the state from its tables, without the cache. If the caller has seen a committed claim,
/// the tables contain the rotation step that the claimer used. The cache can be older, because the
/// invalidation of that step may arrive later.
pub fn reread() -> Result<Rings> {
    load(&tables()?)
}

/// Returns the latest state. The caller has entered or is reading the rings, and has just acquired
/// another lock, which processed invalidations.
pub fn refreshed() -> Result<Rc<Rings>> {
    match cached() {
        Some(rings) => Ok(rings),
        None => look(),
    }
}

/// Returns the cached state if it is valid.
fn cached() -> Option<Rc<Rings>> {
    RINGS_AT.with_borrow(|cached| {
        let valid = cached.as_ref().filter(|(at, _)| *at == generation());
        valid.map(|(_, rings)| Rc::clone(rings))
    })
}

fn locked(mode: pg_sys::LOCKMODE) -> Result<Rc<Rings>> {
    let rings = locked_in_any_state(mode)?;
    match rings.installation.restoring {
        true => Err(Error::Restoring),
        false => Ok(rings),
    }
}

fn locked_in_any_state(mode: pg_sys::LOCKMODE) -> Result<Rc<Rings>> {
    loop {
        let tables = tables()?;
        // SAFETY: a transaction is open. LockRelationOid accepts any OID. If the table was dropped
        // in between, the invalidation has changed `generation`, which is checked below.
        unsafe {
            pg_sys::LockRelationOid(tables.ring, mode);
            // A lock that the transaction already holds does not process invalidations.
            pg_sys::AcceptInvalidationMessages();
        }
        if let Some(rings) = cached() {
            return Ok(rings);
        }
        if TABLES.get().is_none_or(|(at, _)| at != generation())
            && self::tables()?.ring != tables.ring
        {
            // The table was dropped and created again during the wait, so this lock protects
            // nothing.
            // SAFETY: the lock was taken above.
            unsafe { pg_sys::UnlockRelationOid(tables.ring, mode) };
            continue;
        }
        let before = generation();
        let rings = Rc::new(load(&tables)?);
        // If an invalidation arrives while the state is loaded, `before` is outdated, and the next
        // use loads the state again. A load that rolls back ends a restore without an invalidation.
        if !rings.installation.restoring {
            RINGS_AT.set(Some((before, Rc::clone(&rings))));
        }
        return Ok(rings);
    }
}

/// A row of `idem.ring`.
struct RingRow {
    slices: Vec<i16>,
    phase: Option<String>,
    segment: Segment,
    remembers_since: Ran,
    /// When each slice began to take claims, by the number of the slice.
    opened: Vec<Ran>,
}

/// Reads the latest committed state. With an older snapshot, claims would go into a slice that is
/// no longer current.
fn load(tables: &Tables) -> Result<Rings> {
    check_version()?;
    let mut rings: [Option<RingRow>; RINGS + 1] = Default::default();
    for_each_row(tables.ring, |column| {
        let Some(id) = column(1).map(|d| d.value()).filter(|&id| id <= RINGS) else {
            return;
        };
        // SAFETY: the column is int2[].
        let slices = column(2).and_then(|d| unsafe { Vec::<i16>::from_datum(d, false) });
        rings[id] = Some(RingRow {
            slices: slices.unwrap_or_default(),
            // SAFETY: the column is text.
            phase: column(3).and_then(|d| unsafe { String::from_datum(d, false) }),
            segment: column(4).map_or(0, |d| d.value() as Segment),
            remembers_since: column(5).map_or(Ran::MIN, interval),
            // SAFETY: the column is interval[].
            opened: column(8).map_or_else(Vec::new, |d| unsafe { intervals(d) }),
        });
    });
    const NAMES: [&str; RINGS + 1] = ["short", "standard", "long", "outbox"];
    let ring = |id: usize| -> Result<Ring> {
        let row = rings[id]
            .as_ref()
            .ok_or(Error::Corrupt("a ring is missing from idem.ring"))?;
        let ages = |family: &str| {
            SlicesByAge::new(&row.slices, |number| {
                let opened = usize::try_from(number).ok().and_then(|n| row.opened.get(n));
                Ok(Slice {
                    table: table_of(family, number)?,
                    number,
                    opened: *opened.ok_or(Error::Corrupt("a slice has no time in idem.ring"))?,
                })
            })
        };
        let (slices, calls) = if id == RINGS {
            (ages(NAMES[id])?, None)
        } else {
            (
                ages(&format!("inbox_{}", NAMES[id]))?,
                Some(ages(&format!("call_{}", NAMES[id]))?),
            )
        };
        Ok(Ring {
            opening: opening_in(row.phase.as_deref())?,
            segment: row.segment,
            remembers_since: row.remembers_since,
            filtered: (id < RINGS).then_some(id),
            slices,
            calls,
        })
    };
    Ok(Rings {
        installation: Installation::read()?,
        inbox: [ring(0)?, ring(1)?, ring(2)?],
        outbox: ring(3)?,
        pending: tables_of("pending")?,
        pending_current: current_of(tables.pending_rotation, 2)?,
        payloads: tables_of("payload")?,
        payload_current: current_of(tables.payload_rotation, 4)?,
        zero_at: Clock::read()?.zero_at,
        id_is_identity: id_is_identity(tables.installation)?,
    })
}

/// Returns what the phase of a ring opens.
fn opening_in(phase: Option<&str>) -> Result<Opening> {
    match phase {
        Some("steady" | "emptying") => Ok(Opening::Nothing),
        Some("advancing") => Ok(Opening::NextSegment),
        Some("opening") => Ok(Opening::NextSlice),
        _ => Err(Error::Corrupt("a ring has an unknown phase in idem.ring")),
    }
}

/// Returns whether the id alone identifies a message.
fn id_is_identity(installation: pg_sys::Oid) -> Result<bool> {
    let mut identity = None;
    for_each_row(installation, |column| {
        // SAFETY: the column is text.
        identity = column(3).and_then(|d| unsafe { String::from_datum(d, false) });
    });
    let identity = identity.ok_or(Error::Corrupt("idem.installation has no row"))?;
    Ok(identity == "id")
}

/// Returns the number of the current table of a rotation of `count` tables. `rotation` is the table
/// that stores the state of the rotation.
fn current_of(rotation: pg_sys::Oid, count: usize) -> Result<usize> {
    /// The column `current` of idem.pending_rotation and of idem.payload_rotation.
    const CURRENT: i32 = 2;
    pg::latest(rotation, CURRENT)
        .and_then(|current| usize::try_from(current.value() as i16).ok())
        .filter(|current| *current < count)
        .ok_or(Error::Corrupt(
            "a rotation has no row, or an unknown current table",
        ))
}

/// Returns the first N tables `idem.<family>_0`, `idem.<family>_1` and so on.
fn tables_of<const N: usize>(family: &str) -> Result<[pg_sys::Oid; N]> {
    let mut tables = [pg_sys::InvalidOid; N];
    for (number, table) in (0..).zip(&mut tables) {
        *table = table_of(family, number)?;
    }
    Ok(tables)
}

/// Returns the table `idem.<family>_<number>`.
fn table_of(family: &str, number: i16) -> Result<pg_sys::Oid> {
    let name = CString::new(format!("{family}_{number}"));
    pg::relation(&name.map_err(|_| Error::Corrupt("a table of idem has no valid name"))?)
}
