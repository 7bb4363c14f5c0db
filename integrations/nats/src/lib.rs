//! NATS JetStream.

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
