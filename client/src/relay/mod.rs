//! The relay: leases batches of effects, publishes them, and acknowledges them.

mod backoff;
mod batch;
mod calls;
mod commit_notifier;
mod effect_memory;
mod erased;
mod hand_over;
mod key_order;
mod local;
mod outages;
mod partition;
mod publisher;
mod recreated;
mod reporter;
mod runtime;
mod statements;
mod status;
mod topics;
mod waiting;

pub(crate) use backoff::Backoff;
pub use calls::{
    Batch, create_relay, drop_relay, relay_ack, relay_discard, relay_discard_all, relay_extend,
    relay_next, relay_park, relay_partitions, relay_unpark, relay_unpark_all, relay_wait,
    repair_relays,
};
pub use hand_over::{HandOver, hand_over};
pub use local::Local;
pub use publisher::{OutgoingMessage, PublishError, Publisher};
pub use runtime::{Relay, RelayDefaults};
pub use status::{RelayStatus, RelaySummary, UnavailableTopic};
pub use topics::Topics;
