//! Effects: the outgoing messages that a consumer sends while it processes a message. They are
//! recorded with the claim of that message and returned to every duplicate of it.

mod api;
pub mod letter;
mod read;
mod record;

pub use api::parse;
pub use record::record;
