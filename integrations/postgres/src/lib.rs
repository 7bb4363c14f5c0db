#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]
// A panic would end the consumer of a user. Tests may panic.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod commit;
mod executors;

use std::future::Future;

pub use commit::commit;
pub use executors::{PostgresConnection, PostgresTransaction};
pub use idem_client;

/// Executes a function of the client, and returns its result.
pub fn wait<T>(function: impl Future<Output = T>) -> T {
    pollster::block_on(function)
}
