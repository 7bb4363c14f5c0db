//! Which tables take the work of now.

use crate::errors::{Error, Result};
use crate::pg;
use crate::ring::Rings;
use pgrx::pg_sys;

/// The tables of work, locked for writing to the end of the transaction: no turn comes in between.
#[derive(Debug, Clone, Copy)]
pub struct Tables {
    /// The one of the pair that counts.
    pub current: pg_sys::Oid,
}

const BODIES: [&std::ffi::CStr; 4] = [c"body_0", c"body_1", c"body_2", c"body_3"];
/// The column `current` of idem.work_turn and of idem.body_turn.
const CURRENT: i32 = 2;

impl Tables {
    /// In the order in which a turn locks them.
    pub fn enter(rings: &Rings) -> Result<Self> {
        rings.work.into_iter().for_each(pg::lock_for_writing);
        Ok(Tables {
            current: current_work(rings)?,
        })
    }

    /// The slice that takes the next bodies, with its number.
    pub fn bodies(&self) -> Result<(pg_sys::Oid, i16)> {
        let slice = current(c"body_turn")? & 3;
        Ok((oid(BODIES[slice])?, slice as i16))
    }
}

/// The table of the pair that counts, as long as the caller has a lock on both.
pub fn current_work(rings: &Rings) -> Result<pg_sys::Oid> {
    Ok(rings.work[current(c"work_turn")? & 1])
}

fn oid(name: &std::ffi::CStr) -> Result<pg_sys::Oid> {
    pg::relation_oid(name).ok_or(Error::NotInstalled)
}

fn current(turn: &std::ffi::CStr) -> Result<usize> {
    let current = pg::latest(oid(turn)?, CURRENT).ok_or(Error::Corrupt("a turn of work has no row"))?;
    Ok(current.value())
}
