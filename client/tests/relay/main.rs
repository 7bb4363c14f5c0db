//! The relay on a real server, with a broker in memory that fails in every way.

mod broker;
mod bytes;
mod conflicts;
mod environment;
mod faults;
mod local;
#[path = "../support/log.rs"]
mod log;
mod order;
mod preflight;
mod probes;
mod processes;
// Not all of it is used here.
#[allow(dead_code)]
#[path = "../consumer/broker.rs"]
mod queue;
mod recreated;
mod schema;
mod services;
#[path = "../support/mod.rs"]
mod support;
mod waits;
mod world;
