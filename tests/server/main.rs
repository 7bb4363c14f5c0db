//! The tests that need a PostgreSQL server: one module for each topic. The name of a test states
//! the property that it checks.
//!
//! All tests share one cluster and each test has its own database. A test that needs its own server
//! starts one. `cargo xtask build` builds the programs and the extension.

mod api;
mod bad_input;
mod beside;
mod durable;
mod during_rotation;
mod filters;
mod i8_duplicate_is_free;
mod journal;
mod kept_tables;
mod leases;
mod life;
mod other_hands;
mod relays;
mod rotation_restart;
mod security;
mod segments;
mod settings;
mod storage;
