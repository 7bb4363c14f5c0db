//! Leases on a real server: the calls, renewal, handlers without a database, and the consumer
//! around them.

#[path = "../support/mod.rs"]
mod support;

#[allow(dead_code, reason = "others use more of it")]
#[path = "../consumer/broker.rs"]
mod broker;
mod calls;
mod cancel;
mod checked;
mod consumer;
mod counted;
mod ground;
#[path = "../support/polls.rs"]
mod polls;
mod process;
#[allow(dead_code, reason = "others use more of it")]
#[path = "../process/proxy.rs"]
mod proxy;
mod renewal;
