//! Filters: what excludes that a claim is in a slice, so that the slice need not be read.
//!
//! `idem_core::filter` has the data structure. Here is what connects it to PostgreSQL: the shared
//! memory, the filter of a slice, and how a filter is built.

mod build;
mod inspect;
mod memory;
mod slice;

pub use build::{build_next, forget, invalidate, prepare_opened};
pub use inspect::{FilterState, bytes_of, filter_states};
pub use memory::init;
pub use slice::{ClaimHashes, SliceFilter};
