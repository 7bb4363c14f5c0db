//! The position at which a scan for due messages starts in this session.
//!
//! Finished messages leave entries at the beginning of the index, and they cannot be removed while
//! another transaction holds an old snapshot. A scan from the beginning passes over all of them
//! each time. So a scan starts where the previous one found its first message. A message can become
//! due before that position only through a transaction that was open at the time. So a session
//! scans from the beginning from time to time, and always before it returns nothing.

use pgrx::pg_sys;
use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Scans from the beginning take at most one part in `SHARE` of the time, and are at least `APART`
/// apart.
const SHARE: u32 = 50;
const APART: Duration = Duration::from_millis(50);
/// The number of destinations of which a session keeps a position. Above it the session forgets
/// all.
const DESTINATIONS: usize = 1_000;

/// The beginning of the index.
pub const BEGINNING: pg_sys::TimestampTz = pg_sys::TimestampTz::MIN;

struct Place {
    first_due: pg_sys::TimestampTz,
    full_scan_due: Instant,
}

thread_local! {
    static PLACES: RefCell<HashMap<i32, Place>> = RefCell::default();
}

/// A scan that has started.
pub struct ScanStart {
    destination: i32,
    pub at: pg_sys::TimestampTz,
    began: Instant,
}

/// Starts a scan for a destination.
pub fn begin(destination: i32) -> ScanStart {
    let began = Instant::now();
    let at = PLACES.with_borrow(|places| {
        places
            .get(&destination)
            .filter(|place| began < place.full_scan_due)
            .map_or(BEGINNING, |place| place.first_due)
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
        PLACES.with_borrow_mut(|places| {
            if places.len() >= DESTINATIONS {
                places.clear();
            }
            let place = places.entry(self.destination).or_insert(Place {
                first_due,
                full_scan_due: self.began,
            });
            place.first_due = first_due;
            if self.at == BEGINNING {
                place.full_scan_due = Instant::now() + (self.began.elapsed() * SHARE).max(APART);
            }
        });
    }
}
