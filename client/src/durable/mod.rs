//! Messages that are stored first and handled later: the durable inbox.
//!
//! [`receive`] stores a message, after which its sender can forget it. A
//! [`Consumer`](crate::Consumer) of a [`DurableSource`] handles it once, in the order of its key;
//! what fails comes again by the [`RetryPolicy`] of its destination, and ends among the [dead
//! letters](crate::deadletters).

mod calls;
mod desk;
mod letter;
mod receipt;
mod received;
mod shelf;
mod source;
mod store;

pub use calls::{RetryPolicy, configure_retries, next, next_wait, receive, receive_batch};
pub use letter::Letter;
pub use received::Received;
pub use source::DurableSource;
pub(crate) use store::{store, store_batch};
