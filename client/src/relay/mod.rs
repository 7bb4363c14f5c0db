//! The relay: leases partitions, publishes effects, acknowledges.

mod calls;
mod publisher;

pub use calls::{
    Batch, create_relay, drop_relay, relay_ack, relay_extend, relay_next, relay_park, relay_partitions, relay_unpark, relay_wait,
    repair_relays,
};
pub use publisher::{OutgoingMessage, PublishError, Publisher};
