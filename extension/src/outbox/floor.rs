//! The highest floor of the relays. Each new number of the outbox must be above it, because a relay
//! never reads an effect with a number up to its floor.
//!
//! The sequence can fall behind the floors: logical replication does not replicate sequences, and
//! `setval` can set one back. The highest floor is in shared memory. The constraints of the tables
//! with floors note each floor, in whatever way its row arrives. After a start of the server, the
//! first use also reads the floors in the tables.
//!
//! A caller reads the highest floor before it takes or reads a number: a relay can get a higher
//! floor afterwards.

use crate::errors::{Error, Result};
use crate::pg::{for_each_row, is_standby, next_value, relation, with_exclusive_lock};
use crate::shared::{Floor, this_database};
use pgrx::pg_sys;
use std::ffi::CStr;
use std::sync::atomic::Ordering;

/// The tables with floors, and the columns of the floors by number (sql/schema/relays.sql).
const FLOORS: [(&CStr, &[i32]); 3] = [
    (c"relay", &[4]),
    (c"progress_0", &[11, 12, 13]),
    (c"progress_1", &[11, 12, 13]),
];

/// The floor of a database that has no slot in shared memory. It lacks the floors that other
/// backends have noted since this backend read the tables.
static OF_THIS_BACKEND: Floor = Floor::at_start();

/// Notes a floor. The caller writes a row with it.
pub fn note(floor: i64) -> Result<()> {
    of(sequence()?).highest.fetch_max(floor, Ordering::SeqCst);
    Ok(())
}

/// Returns the highest floor of this database.
pub fn highest() -> Result<i64> {
    // On a standby rows arrive without the constraints, and no lock can be taken.
    if is_standby() {
        return read_tables();
    }
    let floor = of(sequence()?);
    if !floor.is_complete.load(Ordering::SeqCst) {
        floor.highest.fetch_max(read_tables()?, Ordering::SeqCst);
        floor.is_complete.store(true, Ordering::SeqCst);
    }
    Ok(floor.highest.load(Ordering::SeqCst))
}

/// The numbers that one command gives to effects.
pub struct Numbers {
    sequence: pg_sys::Oid,
    above: i64,
}

impl Numbers {
    pub fn new() -> Result<Self> {
        Ok(Numbers {
            sequence: sequence()?,
            above: highest()?,
        })
    }

    pub fn next(&self) -> Result<i64> {
        let number = next_value(self.sequence);
        if number <= self.above {
            return Err(Error::SequenceBehind {
                of: "outbox".into(),
            });
        }
        Ok(number)
    }
}

fn sequence() -> Result<pg_sys::Oid> {
    relation(c"outbox_seq")
}

fn of(sequence: pg_sys::Oid) -> &'static Floor {
    let floor = this_database().map_or(&OF_THIS_BACKEND, |database| &database.floor);
    if !is_of(floor, sequence) {
        with_exclusive_lock(sequence, || {
            if !is_of(floor, sequence) {
                floor.clear();
                is_of(floor, sequence);
            }
        });
    }
    floor
}

/// Returns whether the floor belongs to this sequence. Assigns it at the first use.
fn is_of(floor: &Floor, sequence: pg_sys::Oid) -> bool {
    let this = sequence.to_u32();
    let order = Ordering::SeqCst;
    floor.sequence.load(order) == this
        || floor
            .sequence
            .compare_exchange(0, this, order, order)
            .is_ok()
        || floor.sequence.load(order) == this
}

fn read_tables() -> Result<i64> {
    let mut highest = 0;
    for (table, columns) in FLOORS {
        let table = relation(table)?;
        for_each_row(table, |value_of| {
            pgrx::check_for_interrupts!();
            let floors = columns.iter().filter_map(|&column| value_of(column));
            highest = floors.fold(highest, |highest, floor| highest.max(floor.value() as i64));
        });
    }
    Ok(highest)
}
