//! Tests of races, which pause points make deterministic: one session pauses inside a function
//! while other sessions run.
//!
//! The tests need the extension that `cargo xtask test races` builds with the feature
//! `pause-points`.

mod batches;
mod claims;
mod filters;
mod overtaken;
mod pause_points;
mod pending_lock;
mod reindex;
mod second_claims;
mod segments;
mod updated_rows;
