//! RabbitMQ.

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
