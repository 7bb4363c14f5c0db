//! The relay: leases batches of effects, publishes them, and acknowledges them. It holds no
//! transaction while it publishes.
//!
//! One effect of each ordering key is published at a time, so a retry cannot change their order.
//! Effects of different keys are published at the same time. A broker that cannot be reached, and a
//! topic that the broker does not have or has no room for, are errors of the environment: the
//! effect loses no attempt. An effect with [`PublishError::Rejected`] is retried up to a limit and
//! then parked. One with [`PublishError::Permanent`] is parked at once.
//!
//! While a topic is not available, the relay tries one ordering key at a time, and the other topics
//! continue. While the broker can be reached, the batch stays leased until it is done: if it were
//! returned, another process would publish its other effects again.

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
