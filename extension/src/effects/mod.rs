//! Effects: the outgoing messages of a message. They are recorded with its claim and returned to
//! every duplicate.

mod api;
pub mod letter;
mod read;
mod record;

pub use api::parse;
pub use record::record;
