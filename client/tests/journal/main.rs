//! Tests of the journal of external calls, on a real server.

#[path = "../support/mod.rs"]
mod support;

#[path = "../lease/ground.rs"]
#[allow(dead_code, reason = "other test programs use more of this module")]
mod ground;
mod once;
#[path = "../support/polls.rs"]
mod polls;
#[allow(dead_code, reason = "other test programs use more of this module")]
#[path = "../process/proxy.rs"]
mod proxy;
mod stops;
mod unknown;
