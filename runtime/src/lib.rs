#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]
// A panic would end the consumer of a user. Tests may panic.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod backoff;
mod boxed;
mod connection;
pub mod consumer;
mod dead_letter;
mod error;
pub mod filter;
pub mod handler;
pub mod inbox;
pub mod journal;
pub mod lease;
mod memory;
mod message;
mod panics;
pub mod policy;
#[cfg(feature = "tls")]
mod pool;
pub mod process;
pub mod relay;
mod settlement;
mod short_transaction;
mod stored;
mod telemetry;
pub mod transaction;
pub mod transport;

pub use idem_client::relay::OutgoingMessage;

pub use consumer::{Consumer, Delivery, Receipt, Source, terminated};
pub use error::{Error, HandlerError};
pub use handler::Handled;
pub use message::Message;
pub use policy::Policies;
#[cfg(feature = "tls")]
pub use pool::PoolConfig;
pub use process::{Idem, Processed, Tx};
pub use relay::{PublishError, Publisher, Relay};
pub use settlement::Settlement;
pub use telemetry::describe_metrics;

pub use idem_client;
pub use tokio_postgres;
