//! The consumer runtime: fetch, process, settle.
//!
//! The workers share one lock on the source. The worker that holds the lock fetches as much as it
//! can process at once, one message or one batch, and releases the lock before it processes.
//!
//! A consumer holds at most concurrency x batch size messages; this limit is at least two. Each
//! message is being processed, or waits for an earlier message of its key, for free bytes, or for
//! its next attempt. How many messages the broker sends ahead is a setting of the source.

mod attempt;
mod breaker;
mod breakers;
mod budget;
mod builder;
mod failures;
mod intake;
mod last_delivery;
mod probe;
mod queue;
mod rejections;
mod routes;
mod run;
mod selector;
mod settings;
mod shutdown;
mod source;
mod status;
mod summary;
mod verdict;

pub use builder::Consumer;
pub use selector::Selector;
pub use settings::Batches;
pub use shutdown::terminated;
pub use source::{Closed, Delivery, NearLimit, Receipt, Source};
pub use status::ConsumerStatus;
pub use summary::{SourceEnded, Summary, TransportError};
