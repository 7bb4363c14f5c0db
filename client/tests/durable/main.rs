//! Tests of the durable inbox on a real server: messages are stored first, and the consumer runtime
//! handles them later.

#[path = "../consumer/broker.rs"]
#[expect(
    dead_code,
    reason = "these tests use only a part of the broker of the consumer tests"
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
