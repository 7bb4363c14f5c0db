//! Calls to something outside of the database, on a real server.

#[path = "../support/mod.rs"]
mod support;

#[path = "../lease/ground.rs"]
#[allow(dead_code, reason = "others use more of it")]
mod ground;
mod once;
#[path = "../support/polls.rs"]
mod polls;
#[allow(dead_code, reason = "others use more of it")]
#[path = "../process/proxy.rs"]
mod proxy;
mod stops;
mod unknown;
