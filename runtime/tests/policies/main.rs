//! Tests of policies, filters, layers and the store in memory, on a real server.

mod filters;
mod fixtures;
mod ids;
mod memory;
mod rules;
