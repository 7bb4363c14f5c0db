//! Filters: what excludes that a claim is in a slice, so that the slice need not be read.
//!
//! `idem_core::filter` has the data structure. Here is what connects it to PostgreSQL: the shared
//! memory, the filter of a slice, and how a filter is built.
//!
//! ```text
//!       prepare            writers ended, scan          another command inserts a row
//! none ─────────► building ──────────────────► complete ─────────────────────────────► invalid
//!                    │                                                                    ▲
//!                    └─────────────── another command inserts a row ──────────────────────┘
//! (prepared again from each state; none after a start, and when the slice is emptied)
//! ```
//!
//! Only a *complete* filter excludes claims. It then contains each row of its slice, by four rules:
//!
//! 1. A claimer adds its claim before it inserts it, while the filter is being built and while it
//!    is complete.
//! 2. The builder waits for the transactions that may have inserted a claim without adding it, and
//!    then reads every row version: see [`build`].
//! 3. Each other command invalidates the filter before its row exists. COPY, INSERT, UPDATE,
//!    logical replication and a restore execute the CHECK constraint of the slice, which calls
//!    `idem.invalidate_filter`, also with triggers disabled. Claims do not execute it. Such a row
//!    conflicts only with claims of its segment: a claimer that has read the filter before the row
//!    and inserts after it does not find it in another segment. Claims that enter after its commit
//!    find it.
//! 4. A filter belongs to one use of one table: its tag is the OID of the slice and the time
//!    `opened`.
//!
//! The slice that takes claims has a filter too, the *hint*. For the segment of the insert the
//! unique index decides. For earlier segments the hint decides: it is complete, and each running
//! claimer that writes an earlier segment also writes the present one.
//!
//! Leases and received messages write their pending row and then read the filters, with a memory
//! fence between. A claimer adds its claim and then reads the pending rows. So one of the two sees
//! the other. No claimer writes the rings that a destination has left (see `destination`), so all
//! filters are used there. The journal has no filters.
//!
//! Without filters each claim reads each segment of each slice, and everything else works as
//! before: after a start of the server, and after a promotion. The hash of a key contains a secret
//! of the server, so a sender cannot choose ids that fill one line.

mod build;
mod inspect;
mod memory;
mod slice;

pub use build::{build_next, forget, invalidate, prepare_opened};
pub use inspect::{FilterState, bytes_of, filter_states};
pub use memory::init;
pub use slice::{ClaimHashes, SliceFilter};
