//! Where the id of a message comes from.

use std::{fmt, sync::Arc};

use crate::{Message, MessageId};

/// Where the id of a message comes from.
#[derive(Clone)]
#[non_exhaustive]
pub enum IdStrategy {
    /// The sender's message id.
    MessageId,
    /// The correlation id.
    CorrelationId,
    /// A header.
    Header(String),
    /// A member of a JSON payload, by its JSON pointer (RFC 6901), such as `/order/id`: a business id.
    Payload(String),
    /// Topic, partition and offset: where the broker keeps the message.
    Coordinates,
    /// Several of these, all of which must be there.
    Composite(Vec<IdStrategy>),
    /// A function of the message.
    Function(Arc<dyn Fn(&Message) -> Option<MessageId> + Send + Sync>),
}

impl fmt::Debug for IdStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MessageId => f.write_str("MessageId"),
            Self::CorrelationId => f.write_str("CorrelationId"),
            Self::Header(name) => f.debug_tuple("Header").field(name).finish(),
            Self::Payload(pointer) => f.debug_tuple("Payload").field(pointer).finish(),
            Self::Coordinates => f.write_str("Coordinates"),
            Self::Composite(parts) => f.debug_tuple("Composite").field(parts).finish(),
            Self::Function(_) => f.write_str("Function"),
        }
    }
}

/// What to do with a message that has no id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingId {
    /// It is refused: [`Error::MissingId`](crate::Error::MissingId).
    Reject,
    /// It is processed without a claim, with a warning: a duplicate of it takes effect again.
    Unprotected,
}
