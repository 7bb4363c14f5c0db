//! Races, made deterministic with pause points: one session stops in the middle of a function while others act.
//!
//! They need the extension that `cargo xtask test races` builds with the feature `pause-points`.

mod pause_points;
