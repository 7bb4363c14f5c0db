//! The relay on a real server, with an in-memory broker that can fail in every way.

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
// These tests use only a part of it.
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
