//! NATS JetStream.

// A panic would end the consumer of a user. Tests may panic.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod config;
mod connect;
mod held;
mod link;
mod message;
mod prefetched;
mod publisher;
mod pull;
mod receipt;
mod refusal;
mod servers;
mod session;
mod source;
mod terms;

pub use config::{NatsConfig, NatsSubscription};
pub use publisher::NatsPublisher;
pub use source::NatsSource;

// The crate whose types are in the signatures of this crate.
pub use idem_runtime;
