//! Parts of the runtime for a crate that connects consumers and relays to a broker.

pub mod headers;
#[cfg(feature = "tls")]
pub mod percent;
#[cfg(feature = "tls")]
pub mod tls;
pub mod withheld;

pub use crate::{consumer::TransportError, message::Coordinates};
