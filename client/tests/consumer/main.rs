//! The consumer runtime on a real server, fed by a broker in memory that does what brokers do to
//! their consumers.

mod broker;
mod ground;
#[path = "../support/log.rs"]
mod log;
#[path = "../support/mod.rs"]
mod support;

mod batches;
mod bytes;
mod database_away;
mod drain;
mod ends;
mod environment;
mod failures;
mod once;
mod order;
mod pools;
mod preflight;
mod rejections;
mod routes;
mod source_fails;
mod waits;
