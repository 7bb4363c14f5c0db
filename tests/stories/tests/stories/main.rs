//! Tests of worker processes that do work outside the database transaction. The processes are
//! killed or paused, or have a wrong clock.

mod calls;
mod clocks;
mod fixtures;
mod poison;
mod restart;
mod zombie;

/// The worker program of all these tests.
const WORKER: &str = env!("CARGO_BIN_EXE_story-worker");
