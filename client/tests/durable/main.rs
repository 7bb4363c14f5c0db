//! The durable inbox on a real server: messages are stored first, and handled by the consumer
//! runtime later.

#[path = "../consumer/broker.rs"]
#[expect(
    dead_code,
    reason = "the broker of the consumer's tests can do more than is needed here"
)]
mod broker;
#[path = "../support/mod.rs"]
mod support;
mod world;

mod bytes;
mod calls;
mod failures;
mod hand_over;
mod inbox;
mod leases;
mod many;
mod order;
