//! What stands between a message and its transaction, on a real server.

#[path = "../support/mod.rs"]
mod support;

mod documentation;
mod filters;
mod ground;
mod ids;
mod layers;
mod memory;
mod remembered;
mod rules;
