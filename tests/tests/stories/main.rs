//! The hard stories: work outside of the transaction, done by processes that are killed, paused,
//! and wrong about the time.

mod calls;
mod clocks;
mod ground;
mod poison;
mod restart;
mod zombie;

/// The worker of all of them.
const WORKER: &str = env!("CARGO_BIN_EXE_story-worker");
