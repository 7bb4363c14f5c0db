//! RabbitMQ.

// A panic would end the consumer of a user. Tests may panic.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod config;
mod connect;
mod consuming;
mod properties;
mod publisher;
mod receipt;
mod session;
mod source;
mod starting;

pub use config::{RabbitMqConfig, RabbitMqSubscription};
pub use publisher::RabbitMqPublisher;
pub use source::RabbitMqSource;

// The crate whose types are in the signatures of this crate.
pub use idem_runtime;
