//! Tests of leases on a real server: the functions, the renewal, handlers that run without a
//! transaction, and consumers with such handlers.

#[path = "../support/mod.rs"]
mod support;

#[allow(dead_code, reason = "other test programs use more of this module")]
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
#[allow(dead_code, reason = "other test programs use more of this module")]
#[path = "../process/proxy.rs"]
mod proxy;
mod renewal;
