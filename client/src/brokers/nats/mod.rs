//! NATS JetStream.

mod config;
mod connect;
mod link;
mod message;
mod publisher;
mod receipt;
mod refusal;
mod servers;
mod source;

pub use config::{NatsConfig, NatsSubscription};
pub use publisher::NatsPublisher;
pub use source::NatsSource;
