//! Requests over a real socket, from a real HTTP client to an axum service on a real server: each
//! response and each failure in both modes.

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
