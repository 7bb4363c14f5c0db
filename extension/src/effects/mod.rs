//! Effects: the outgoing messages of a message, recorded with its claim, and found again by every
//! duplicate.

mod api;
pub mod letter;
mod read;
mod record;

pub use api::parse;
pub use record::record;
