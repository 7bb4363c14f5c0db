//! The rings: which slices there are, which one takes claims, which ones are probed.

mod cache;
mod clock;
mod fence;
mod interval;
mod version;

pub use cache::{enter, generation, look, refreshed};
pub use clock::{Ran, monotonic_us};
pub use fence::{fence_passed, fences_pending, transaction_ended};
pub use interval::interval;
pub use version::check_version;

use pgrx::pg_sys;

/// Slices of a ring: two sealed, current, next.
pub const SLICES: usize = 4;
/// Rings of the inbox: short, standard, long.
pub const RINGS: usize = 3;

/// One ring as `idem.ring` describes it.
#[derive(Debug, Clone, Copy)]
pub struct Ring {
    current: usize,
    /// The rotation has begun: claims go into current and next.
    opening: bool,
    /// Every claim made since then is found; `Ran::MIN`: every claim.
    pub remembers_since: Ran,
    slices: [pg_sys::Oid; SLICES],
    /// The journal's slices, which turn with those of the claims; the outbox has none.
    calls: [pg_sys::Oid; SLICES],
}

impl Ring {
    /// The two slices that take no claims any longer, the older first.
    pub fn sealed(&self) -> [pg_sys::Oid; 2] {
        [self.at(2), self.at(3)]
    }

    pub fn current(&self) -> pg_sys::Oid {
        self.at(0)
    }

    /// The next slice, while claims must stand there too.
    pub fn next_if_opening(&self) -> Option<pg_sys::Oid> {
        self.opening.then(|| self.at(1))
    }

    /// The slices in which a claim can stand, the oldest first.
    pub fn probed(&self) -> impl Iterator<Item = pg_sys::Oid> {
        self.sealed()
            .into_iter()
            .chain([self.current()])
            .chain(self.next_if_opening())
    }

    /// Every slice, whatever its state.
    pub fn all(&self) -> [pg_sys::Oid; SLICES] {
        self.slices
    }

    fn at(&self, distance: usize) -> pg_sys::Oid {
        self.slices[(self.current + distance) % SLICES]
    }
}

/// All rings, as of one moment.
#[derive(Debug, Clone, Copy)]
pub struct Rings {
    pub inbox: [Ring; RINGS],
    pub outbox: Ring,
    /// What the wall clock shows when the clock of the rings is zero.
    zero_at: pg_sys::TimestampTz,
    /// The two tables of pending messages, and which of them counts.
    pending: [pg_sys::Oid; 2],
    pending_current: usize,
    /// The slices of payloads, and which of them takes new ones.
    payloads: [pg_sys::Oid; SLICES],
    payload_current: usize,
}

impl Rings {
    /// The table of pending messages that counts.
    pub fn pending(&self) -> pg_sys::Oid {
        self.pending[self.pending_current]
    }

    /// Which of the two tables that is.
    pub fn pending_number(&self) -> usize {
        self.pending_current
    }

    /// The slice that takes new payloads, with its number.
    pub fn new_payloads(&self) -> (pg_sys::Oid, i16) {
        (
            self.payloads[self.payload_current],
            self.payload_current as i16,
        )
    }

    /// A slice of payloads by its number.
    pub fn payloads(&self, number: i16) -> Option<pg_sys::Oid> {
        self.payloads.get(usize::try_from(number).ok()?).copied()
    }

    /// What the wall clock, as it goes now, showed at a moment of the rings.
    pub fn wall_clock(&self, at: Ran) -> pg_sys::TimestampTz {
        if at == Ran::MIN {
            return pg_sys::TimestampTz::MIN;
        }
        self.zero_at.saturating_add(at)
    }

    /// The same rings, but their slices are those of the journal: who writes and reads these as
    /// claims do is told from others, and forgotten, as claims are.
    pub fn of_calls(&self) -> Rings {
        Rings {
            inbox: self.inbox.map(|ring| Ring {
                slices: ring.calls,
                ..ring
            }),
            ..*self
        }
    }
}
