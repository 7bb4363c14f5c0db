//! Work outside the transaction, done by processes that are killed, that are paused, and that have
//! a wrong clock.

mod calls;
mod clocks;
mod ground;
mod poison;
mod restart;
mod zombie;

/// The worker program of all these tests.
const WORKER: &str = env!("CARGO_BIN_EXE_story-worker");
