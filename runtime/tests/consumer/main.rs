//! Tests of the consumer runtime on a real PostgreSQL server. An in-memory broker delivers the
//! messages and can produce the faults of real brokers.

mod fixtures;

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
