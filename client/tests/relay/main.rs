//! The relay on a real server, with a broker in memory that fails in every way.

mod broker;
mod faults;
mod local;
mod order;
mod processes;
// Not all of it is used here.
#[allow(dead_code)]
#[path = "../consumer/broker.rs"]
mod queue;
mod services;
#[path = "../support/mod.rs"]
mod support;
mod world;
