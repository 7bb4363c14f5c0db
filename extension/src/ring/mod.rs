//! The rings: the slices of each ring, which slice takes claims, and in which slices a claim looks
//! its key up.

mod by_age;
mod cache;
mod clock;
mod fence;
mod installation;
mod interval;
mod loads;
mod version;

pub use cache::{Entered, enter, entered, generation, look, refreshed, reread, ring_table};
pub use clock::{Ran, monotonic_us, ran};
pub use fence::{invalidate, lockers, not_in_the_transaction_that_published};
pub use installation::{Installation, ensure_restored};
pub use interval::interval;
pub use loads::record_load;
pub use version::check_version;

use crate::pg::Segment;
pub use by_age::{MAX_SLICES, Slice, SlicesByAge};
use pgrx::pg_sys;
use std::borrow::Cow;

/// The number of slices of payloads.
const PAYLOAD_SLICES: usize = 4;
/// The number of rings of the inbox: short, standard, long.
pub const RINGS: usize = 3;

/// Where claims are written in addition to the present segment of the current slice, until a fence
/// has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Opening {
    Nothing,
    NextSegment,
    NextSlice,
}

/// A segment to which claims are written.
#[derive(Debug, Clone, Copy)]
pub struct WrittenSegment {
    pub slice: Slice,
    pub segment: Segment,
    /// Whether the segment before this one is in the same slice.
    pub is_repeated: bool,
}

/// A ring, as described by `idem.ring`.
#[derive(Debug, Clone, Copy)]
pub struct Ring {
    opening: Opening,
    /// The present segment of the current slice.
    segment: Segment,
    /// Every claim made since this time is found. `Ran::MIN` means every claim.
    pub remembers_since: Ran,
    /// The number of the ring if its slices can have filters: those of the inbox.
    pub filtered: Option<usize>,
    slices: SlicesByAge,
    /// The slices of the journal, which rotate with the slices of the claims. The outbox has no
    /// such slices.
    calls: Option<SlicesByAge>,
}

impl Ring {
    /// Returns the slices that no longer take claims, the oldest first.
    pub fn sealed(&self) -> &[Slice] {
        self.slices.sealed()
    }

    /// Returns the slice that was current before the last rotation.
    pub fn newest_sealed(&self) -> Slice {
        self.slices.newest_sealed()
    }

    pub fn current(&self) -> Slice {
        self.slices.current()
    }

    /// Returns the segments to which claims are written, in this order.
    pub fn written(&self) -> impl Iterator<Item = WrittenSegment> + use<> {
        let at = |slice, segment, is_repeated| WrittenSegment {
            slice,
            segment,
            is_repeated,
        };
        let next = match self.opening {
            Opening::Nothing => None,
            Opening::NextSegment => Some(at(self.current(), self.segment + 1, true)),
            Opening::NextSlice => Some(at(self.slices.next(), 0, false)),
        };
        std::iter::once(at(self.current(), self.segment, false)).chain(next)
    }

    /// Returns the slices that take claims, the older one first.
    pub fn filling(&self) -> impl Iterator<Item = Slice> + use<> {
        let next = (self.opening == Opening::NextSlice).then(|| self.slices.next());
        std::iter::once(self.current()).chain(next)
    }

    /// Returns the slices in which a claim can be, the oldest first.
    pub fn probed(&self) -> Vec<Slice> {
        self.sealed()
            .iter()
            .copied()
            .chain(self.filling())
            .collect()
    }

    /// Returns every slice, regardless of its state.
    pub fn all(&self) -> &[Slice] {
        self.slices.all()
    }
}

/// The state of all rings at one point in time.
#[derive(Debug, Clone)]
pub struct Rings {
    pub installation: Installation,
    pub inbox: [Ring; RINGS],
    pub outbox: Ring,
    /// The wall-clock time at which the clock of the rings was zero.
    zero_at: pg_sys::TimestampTz,
    /// Whether the id alone identifies a message (`idem_set_message_identity`).
    pub id_is_identity: bool,
    /// The two tables of pending messages, and the number of the current table.
    pending: [pg_sys::Oid; 2],
    pending_current: usize,
    /// The slices of payloads, and the number of the slice that takes new payloads.
    payloads: [pg_sys::Oid; PAYLOAD_SLICES],
    payload_current: usize,
}

impl Rings {
    /// Returns the current table of pending messages.
    pub fn pending(&self) -> pg_sys::Oid {
        self.pending[self.pending_current]
    }

    /// Returns the number of the current table of pending messages.
    pub fn pending_number(&self) -> usize {
        self.pending_current
    }

    /// Returns the slice that takes new payloads, with its number.
    pub fn new_payloads(&self) -> (pg_sys::Oid, i16) {
        (
            self.payloads[self.payload_current],
            self.payload_current as i16,
        )
    }

    /// Returns the slice of payloads with this number.
    pub fn payloads(&self, number: i16) -> Option<pg_sys::Oid> {
        self.payloads.get(usize::try_from(number).ok()?).copied()
    }

    /// Converts a time on the clock of the rings to a time on the wall clock. When the wall clock
    /// jumps, the result jumps too.
    pub fn wall_clock(&self, at: Ran) -> pg_sys::TimestampTz {
        if at == Ran::MIN {
            return pg_sys::TimestampTz::MIN;
        }
        self.zero_at.saturating_add(at)
    }

    /// Returns whether a claim can be in the same slices as in `other`: whether each ring has the
    /// same slices in the same order, and opens the next slice in both states or in neither.
    fn has_slices_of(&self, other: &Rings) -> bool {
        let state = |rings: &Rings| {
            rings
                .inbox
                .map(|ring| (ring.slices, ring.opening == Opening::NextSlice))
        };
        state(self) == state(other)
    }

    /// Returns these rings, with the slices of the inbox.
    pub fn inbox_slices(&self) -> Cow<'_, Rings> {
        Cow::Borrowed(self)
    }

    /// Returns these rings with the slices of the journal instead of those of the inbox. External
    /// calls are inserted, looked up and forgotten by the rules of claims, but these slices have no
    /// segments.
    pub fn journal_slices(&self) -> Cow<'_, Rings> {
        Cow::Owned(Rings {
            inbox: self.inbox.map(|ring| Ring {
                slices: ring.calls.unwrap_or(ring.slices),
                filtered: None,
                opening: match ring.opening {
                    Opening::NextSegment => Opening::Nothing,
                    opening => opening,
                },
                ..ring
            }),
            ..*self
        })
    }
}
