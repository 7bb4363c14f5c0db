//! The proofs that need a server: one module an idea, each test named after what must hold.
//!
//! They share one cluster and have a database each; what needs a server of its own starts one. The
//! programs and the extension come from `cargo xtask build`.

mod api;
mod bad_input;
mod beside;
mod docs;
mod durable;
mod i8_duplicate_is_free;
mod isolation;
mod journal;
mod lease_stress;
mod leases;
mod life;
mod relays;
mod rotation_restart;
mod rotation_stress;
mod security;
mod settings;
mod shooting_range;
mod spec;
mod storage;
mod untyped;
