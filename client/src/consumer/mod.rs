//! The consumer runtime: fetch, process, settle.
//!
//! Workers take turns at the source. Whoever has the turn fetches what it can process at once, one
//! message or a batch, and passes the turn on while it works. So nothing is held that nobody works
//! on, but for messages that wait for another one of their key; how much a broker sends ahead is
//! the source's business.

mod attempt;
mod breaker;
mod breakers;
mod budget;
mod builder;
mod ended;
mod failures;
mod intake;
mod last_delivery;
mod probe;
mod queue;
mod rejections;
mod requeued;
mod routes;
mod runtime;
mod selector;
mod shutdown;
mod source;
mod status;
mod summary;
mod verdict;
mod workers;

pub use builder::{Batches, Consumer};
pub use ended::SourceEnded;
pub use selector::Selector;
pub use shutdown::terminated;
pub use source::{Closed, Delivery, Receipt, Source, TransportError};
pub use status::ConsumerStatus;
pub use summary::Summary;
