//! The clock of the rings: `ran`, the time that has certainly passed since the extension was
//! created.
//!
//! All times that are compared across rotations are readings of `ran`. While the server runs, `ran`
//! advances with the monotonic clock. It does not count the time from the last stored reading
//! before a restart to the first reading after the restart. So a jump of the wall clock does not
//! change `ran`, and after downtime a ring only remembers its claims for longer. `idem.tick`
//! (sql/internal/clock.sql) stores the readings.
//!
//! A clock that adds up the differences of the wall clock, with a limit for each difference, was
//! considered. No limit is correct: it must be larger than the longest pause between two passes,
//! and much smaller than the shortest retention.
//!
//! With `zero_at` a reading is converted into a time of the wall clock, for comparisons with
//! `sent_at` and for output.

use super::interval::interval;
use crate::errors::Error;
use crate::pg;
use crate::pg::for_each_row;
use pgrx::pg_sys;

/// A time on the clock of the rings, in microseconds.
pub type Ran = i64;

/// The row of `idem.clock`.
#[derive(Default)]
pub struct Clock {
    /// The wall-clock time at which `ran` was zero, as computed from the present wall clock.
    pub zero_at: pg_sys::TimestampTz,
    server_started: pg_sys::TimestampTz,
    ran: Ran,
    monotonic: i64,
}

impl Clock {
    /// Reads the latest committed row, regardless of the transaction's snapshot.
    pub fn read() -> Result<Self, Error> {
        let table = pg::relation(c"clock")?;
        let mut clock = None;
        for_each_row(table, |column| {
            clock = Self::of(column);
        });
        clock.ok_or(Error::Corrupt(
            "the row of idem.clock is missing or incomplete",
        ))
    }

    fn of(column: impl Fn(i32) -> Option<pg_sys::Datum>) -> Option<Self> {
        Some(Self {
            zero_at: column(2)?.value() as i64,
            server_started: column(4)?.value() as i64,
            ran: interval(column(5)?),
            monotonic: interval(column(6)?),
        })
    }

    fn now(&self) -> Ran {
        // SAFETY: PgStartTime is set once, when the server starts.
        let this_run = unsafe { pg_sys::PgStartTime };
        if self.server_started != this_run {
            return self.ran;
        }
        self.ran + (monotonic_us() - self.monotonic).max(0)
    }
}

/// Returns the present reading of the clock. Works on a standby, where the clock does not advance.
pub fn ran() -> Result<Ran, Error> {
    Ok(Clock::read()?.now())
}

/// Returns the system's monotonic clock, in microseconds. Two readings can be compared if both were
/// taken in the same run of the server.
pub fn monotonic_us() -> i64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: clock_gettime fills the struct. Every system that the server runs on has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
}
