//! The tests that need a PostgreSQL server: one module for each topic. The name of a test states
//! the property that it checks.
//!
//! All tests share one cluster and each test has its own database. A test that needs its own server
//! starts one. `cargo xtask build` builds the programs and the extension.

mod api;
mod bad_input;
mod beside;
mod demo;
mod docs;
mod durable;
mod i8_duplicate_is_free;
mod isolation;
mod journal;
mod lease_stress;
mod leases;
mod life;
mod protection;
mod relays;
mod rotation_restart;
mod rotation_stress;
mod security;
mod settings;
mod shooting_range;
mod spec;
mod storage;
mod untyped;
