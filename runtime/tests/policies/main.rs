//! Tests of policies, filters, layers and the memory of duplicates, on a real server.

mod documentation;
mod filters;
mod fixtures;
mod ids;
mod layers;
mod memory;
mod remembered;
mod rules;
