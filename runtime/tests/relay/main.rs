//! Tests of the relay on a real server. An in-memory broker can fail in every way.

mod broker;
mod bytes;
mod conflicts;
mod environment;
mod faults;
mod fixtures;
mod order;
mod preflight;
mod probes;
mod processes;
mod recreated;
mod schema;
mod waits;
