//! The durable inbox: messages are stored first and handled later.
//!
//! [`receive`](idem_client::inbox::receive) stores a message; its sender can delete the message
//! after that. A [`Consumer`](crate::Consumer) of a [`DurableSource`] handles the message once, in
//! the order of its key. A failed message is retried by the retry policy of its destination
//! (`idem_configure_retries`) and finally becomes a [dead letter](idem_client::deadletters).

mod client;
mod message;
mod prefetch;
mod receipt;
mod source;
mod store;

pub use source::DurableSource;
pub(crate) use store::{store, store_batch};
