//! Tests of the functions of the client on connections of sqlx, on a real server.

mod failures;
mod fixtures;
mod functions;
mod transactions;
