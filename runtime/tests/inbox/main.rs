//! Tests of the durable inbox on a real server: messages are stored first, and the consumer runtime
//! handles them later.

mod fixtures;

mod bytes;
mod calls;
mod ended;
mod failures;
mod filters;
mod hand_over;
mod inbox;
mod leases;
mod many;
mod order;
