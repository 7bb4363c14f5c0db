//! Tests of `Idem::process` and `process_batch` on a real server: each style, each failure, and
//! each point at which processing can be interrupted.

mod ambiguous;
mod batch;
mod cancel;
mod dropped;
mod ended;
mod fixtures;
mod retries;
mod styles;
mod tx;
mod wire;
