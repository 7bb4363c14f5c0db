//! The consumer runtime: fetch, process, settle.

mod source;

pub use source::{Delivery, Receipt, Source, TransportError};
