//! Tests of the results of the API functions when they are used correctly.

mod batches;
mod bodies;
mod claims;
mod commit;
mod counters;
mod destinations;
mod effects;
mod expanded;
mod locales;
mod lone_claims;
mod memory_limit;
mod message_identity;
mod resources;
mod sends;
mod serializable;
