//! Tests of the relay on a real server. An in-memory broker can fail in every way.

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
// The tests of this program use only a part of the module `queue`.
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
