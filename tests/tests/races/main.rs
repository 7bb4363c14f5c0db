//! Races, made deterministic with pause points: one session stops in the middle of a function while
//! others act.
//!
//! They need the extension that `cargo xtask test races` builds with the feature `pause-points`.

mod claims;
mod pause_points;
mod reindex;
mod updated_rows;
