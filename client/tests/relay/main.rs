//! The relay on a real server, with a broker in memory that fails in every way.

mod broker;
mod faults;
mod local;
mod order;
mod processes;
#[path = "../support/mod.rs"]
mod support;
mod world;
