//! The relay: leases partitions, publishes effects, acknowledges.

mod publisher;

pub use publisher::{OutgoingMessage, PublishError, Publisher};
