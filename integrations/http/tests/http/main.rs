//! Tests of the HTTP layer: a real HTTP client sends requests over a socket to an axum service with
//! a real database server. They cover each response and each failure in both modes.

mod cancel;
mod extractors;
mod failures;
mod fixtures;
mod keys;
mod leases;
mod limits;
mod once;
mod refusals;
mod responses;
mod shutdown;
mod tenants;
