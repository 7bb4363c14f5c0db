//! Requests over a real socket, by a real HTTP client, to an axum service on a real server: in both
//! modes, each answer and each failure.

#[path = "../support/mod.rs"]
mod support;

#[path = "../process/proxy.rs"]
#[allow(dead_code)]
mod proxy;

mod cancel;
mod failures;
mod ground;
mod keys;
mod leases;
mod limits;
mod once;
mod refusals;
mod responses;
mod shutdown;
mod tenants;
