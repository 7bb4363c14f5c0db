#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]
// A panic would end the consumer of a user. Tests may panic.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod binary;
mod commit;
mod connection;
mod error;

pub use binary::row;
pub use commit::commit;
pub use connection::{Borrowed, SqlxConnection, SqlxTransaction};
pub use error::{driver_error_in, translated};
pub use idem_client;
