//! Tests of `Idem::process` and `process_batch` on a real server: each style, each failure, and
//! each point at which processing can be interrupted.

#[path = "../support/mod.rs"]
mod support;

mod ambiguous;
mod batch;
mod cancel;
mod dropped;
mod ground;
#[path = "../support/polls.rs"]
mod polls;
#[allow(dead_code, reason = "other test programs use more of this module")]
mod proxy;
mod retries;
mod styles;
mod tx;
mod wire;
