//! The relay: leases batches of effects, publishes them, and acknowledges them.

mod batch;
mod commit_notifier;
mod effect_memory;
mod errors;
mod hand_over;
mod key_order;
mod outages;
mod partition;
mod publisher;
mod reporter;
mod runtime;
mod serving;
mod settings;
mod statements;
mod status;
mod topics;
mod waiting;

pub use hand_over::HandOver;
pub use publisher::{PublishError, Publisher};
pub use runtime::Relay;
pub use settings::defaults;
pub use status::{RelayStatus, RelaySummary, UnavailableTopic};
pub use topics::Topics;
