//! The relay: leases batches of effects, publishes them, and acknowledges them. It holds no
//! transaction while it publishes.
//!
//! One effect of each ordering key is published at a time, so a retry cannot change their order.
//! Effects of different keys are published at the same time. An unavailable broker, or a topic for
//! which the broker has no place, is an error of the environment: the effect loses no attempt.
//! *Rejected* is retried up to a limit and then parked, and *Permanent* is parked at once. For a
//! topic without a place the relay tries one ordering key at a time, and the other topics continue.
//! The batch stays leased until the broker accepts an effect of the topic: if it were returned,
//! another process would publish its other effects again.

mod batch;
mod effect_memory;
mod errors;
mod hand_over;
mod key_order;
mod partition;
mod publisher;
mod reporter;
mod runtime;
mod serving;
mod settings;
mod statements;
mod status;
mod topic_state;
mod topics;

pub use hand_over::HandOver;
pub use publisher::{PublishError, Publisher};
pub use runtime::Relay;
pub use settings::defaults;
pub use status::{RelayStatus, RelaySummary, UnavailableTopic};
pub use topics::Topics;
