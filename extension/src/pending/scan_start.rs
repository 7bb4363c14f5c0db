//! The position at which a scan for due messages starts in this session.
//!
//! Finished messages leave entries at the beginning of the index, and VACUUM cannot remove these
//! entries while another transaction holds an old snapshot. A scan from the beginning reads all of
//! them. So a scan starts where the previous scan found its first message. A due message can later
//! appear before that position only if a transaction that was open during the previous scan writes
//! it. So a session scans from the beginning from time to time, and always before it reports that
//! no message is due.

use pgrx::pg_sys;
use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Scans from the beginning take at most 1/`SHARE` of the time, and at least `APART` passes between
/// two of them.
const SHARE: u32 = 50;
const APART: Duration = Duration::from_millis(50);
/// The maximum number of destinations with a stored position. When it is reached, the session
/// forgets all positions.
const DESTINATIONS: usize = 1_000;

/// Lower than every `due_at`: a scan from here starts at the first entry of the destination in the
/// index on (destination, due_at, seq).
pub const BEGINNING: pg_sys::TimestampTz = pg_sys::TimestampTz::MIN;

struct Position {
    first_due: pg_sys::TimestampTz,
    full_scan_due: Instant,
}

thread_local! {
    static POSITIONS: RefCell<HashMap<i32, Position>> = RefCell::default();
}

/// A scan of one session for due messages: where in the index it started, and when.
pub struct ScanStart {
    destination: i32,
    pub at: pg_sys::TimestampTz,
    began: Instant,
}

/// Starts a scan for a destination.
pub fn begin(destination: i32) -> ScanStart {
    let began = Instant::now();
    let at = POSITIONS.with_borrow(|positions| {
        positions
            .get(&destination)
            .filter(|position| began < position.full_scan_due)
            .map_or(BEGINNING, |position| position.first_due)
    });
    ScanStart {
        destination,
        at,
        began,
    }
}

impl ScanStart {
    /// Notes the due time of the first message that the scan found.
    pub fn found(&self, first_due: pg_sys::TimestampTz) {
        POSITIONS.with_borrow_mut(|positions| {
            if positions.len() >= DESTINATIONS {
                positions.clear();
            }
            let position = positions.entry(self.destination).or_insert(Position {
                first_due,
                full_scan_due: self.began,
            });
            position.first_due = first_due;
            if self.at == BEGINNING {
                position.full_scan_due = Instant::now() + (self.began.elapsed() * SHARE).max(APART);
            }
        });
    }
}
