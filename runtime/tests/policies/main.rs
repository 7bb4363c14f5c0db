//! Tests of policies, filters, layers and the memory of duplicates, on a real server.

mod filters;
mod fixtures;
mod ids;
mod memory;
mod remembered;
mod rules;
