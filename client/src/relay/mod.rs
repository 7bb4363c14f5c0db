//! The relay: leases batches of effects, publishes them, and acknowledges them.

mod batch;
mod bell;
mod calls;
mod erased;
mod hand_over;
mod lanes;
mod local;
mod memory;
mod notes;
mod partition;
mod pauses;
mod publisher;
mod recreated;
mod runtime;
mod status;
mod steps;
mod topics;
mod troubles;
mod waiting;

pub use calls::{
    Batch, create_relay, drop_relay, relay_ack, relay_discard, relay_discard_all, relay_extend,
    relay_next, relay_park, relay_partitions, relay_unpark, relay_unpark_all, relay_wait,
    repair_relays,
};
pub use hand_over::{HandOver, hand_over};
pub use local::Local;
pub(crate) use pauses::Pauses;
pub use publisher::{OutgoingMessage, PublishError, Publisher};
pub use runtime::{Relay, RelayDefaults};
pub use status::{RelayStatus, RelaySummary, UnavailableTopic};
pub use topics::Topics;
