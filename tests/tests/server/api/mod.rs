//! What the calls answer when they are used as they are meant.

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
