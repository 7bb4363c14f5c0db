//! The clock of the rings: `ran`, the time that is certain to have passed since the extension was
//! created.
//!
//! Every moment that is compared across rotations is a reading of it. It counts what the monotonic
//! clock counts between two readings by one run of the server, and nothing across a restart: a wall
//! clock that jumps does not move it, and downtime only lengthens what a ring remembers.
//! `idem.tick` (sql/12_clock.sql) writes it down.

use super::interval::interval;
use crate::errors::Error;
use crate::pg;
use crate::pg::for_each_row;
use pgrx::datum::Interval;
use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

/// Microseconds on the clock of the rings.
pub type Ran = i64;

/// The row of `idem.clock`.
#[derive(Default)]
pub struct Clock {
    /// What the wall clock shows when `ran` is zero, as of now.
    pub zero_at: pg_sys::TimestampTz,
    server_started: pg_sys::TimestampTz,
    ran: Ran,
    monotonic: i64,
}

impl Clock {
    /// Reads it as it is now, whatever the transaction's own snapshot.
    pub fn read() -> Result<Self, Error> {
        let table = pg::relation_oid(c"clock").ok_or(Error::NotInstalled)?;
        let mut clock = None;
        for_each_row(table, |column| {
            let timestamp = |number| column(number).map_or(0, |d| d.value() as i64);
            let interval = |number| column(number).map_or(0, interval);
            clock = Some(Self {
                zero_at: timestamp(2),
                server_started: timestamp(4),
                ran: interval(5),
                monotonic: interval(6),
            });
        });
        clock.ok_or(Error::Corrupt("the row of idem.clock is missing"))
    }

    fn now(&self) -> Ran {
        // SAFETY: set once, when the server starts.
        let this_run = unsafe { pg_sys::PgStartTime };
        if self.server_started != this_run {
            return self.ran;
        }
        self.ran + (monotonic_us() - self.monotonic).max(0)
    }
}

/// The reading of the clock now. Works on a standby, where the clock stands still.
#[pg_extern(
    requires = ["schema"],
    sql = r#"
CREATE FUNCTION idem.ran() RETURNS interval LANGUAGE c AS 'MODULE_PATHNAME', 'ran_wrapper';
"#
)]
fn ran() -> Result<Interval, ErrorReport> {
    Ok(Interval::from_micros(Clock::read()?.now()))
}

/// The system's monotonic clock. Two readings can be compared when one run of the server has taken
/// both.
#[pg_extern(
    requires = ["schema"],
    sql = r#"
CREATE FUNCTION idem.monotonic() RETURNS interval LANGUAGE c AS 'MODULE_PATHNAME', 'monotonic_wrapper';
"#
)]
fn monotonic() -> Interval {
    Interval::from_micros(monotonic_us())
}

/// The system's monotonic clock, in microseconds.
pub fn monotonic_us() -> i64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: fills the struct; this clock exists on every system that the server runs on.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
}
