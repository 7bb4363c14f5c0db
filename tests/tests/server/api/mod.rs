//! The results of the API functions with valid use.

mod bodies;
mod claims;
mod counters;
mod destinations;
mod effects;
mod locales;
mod lone_claims;
mod memory_limit;
mod message_identity;
mod resources;
mod sends;
mod serializable;
