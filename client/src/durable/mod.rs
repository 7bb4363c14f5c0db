//! The durable inbox: messages are stored first and handled later.
//!
//! [`receive`] stores a message; its sender can delete the message after that. A
//! [`Consumer`](crate::Consumer) of a [`DurableSource`] handles the message once, in the order of
//! its key. A failed message is retried by the [`RetryPolicy`] of its destination and finally
//! becomes a [dead letter](crate::deadletters).

mod calls;
mod inbox;
mod inbox_message;
mod prefetch;
mod receipt;
mod received;
mod source;
mod store;

pub use calls::{RetryPolicy, configure_retries, next, next_wait, receive, receive_batch};
pub use inbox_message::InboxMessage;
pub use received::Received;
pub use source::DurableSource;
pub(crate) use store::{store, store_batch};
