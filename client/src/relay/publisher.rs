//! The trait that connects a relay to a broker: [`Publisher`]. It is small: an implementation takes
//! about 30 lines.

use std::{error::Error as StdError, fmt, future::Future};

use bytes::Bytes;
use serde_json::{Map, Value};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{error::causes, redacted::Length};

/// An effect that is to be published.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct OutgoingMessage {
    /// The number of the effect in the outbox, which defines the order. It is 0 for a message that
    /// is not from an outbox.
    pub seq: i64,
    /// The message id. Pass it to the broker: brokers with deduplication and consumers detect
    /// duplicates by it.
    pub message_id: Uuid,
    /// The topic: an exchange, subject or topic of a broker, or a destination in the same database.
    pub topic: String,
    /// The key. Effects of one key are published one after the other.
    pub key: Option<String>,
    /// The type of the message.
    pub message_type: Option<String>,
    /// The payload. A JSON payload is UTF-8 text.
    pub payload: Bytes,
    /// The content type of the payload.
    pub content_type: Option<String>,
    /// The headers.
    pub headers: Map<String, Value>,
    /// The W3C trace context of the transaction that recorded the effect. It is sent as the header
    /// `traceparent`.
    pub traceparent: Option<String>,
    /// When the effect was recorded, by the server's clock.
    pub recorded_at: OffsetDateTime,
    /// The destination of the message that the effect results from. `None` for an effect that was
    /// sent directly.
    pub source_destination: Option<String>,
}

/// Omits the payload, which may contain confidential data.
impl fmt::Debug for OutgoingMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutgoingMessage")
            .field("seq", &self.seq)
            .field("message_id", &self.message_id)
            .field("topic", &self.topic)
            .field("key", &self.key)
            .field("message_type", &self.message_type)
            .field("payload", &Length(self.payload.len()))
            .field("content_type", &self.content_type)
            .field("headers", &self.headers)
            .field("traceparent", &self.traceparent)
            .field("recorded_at", &self.recorded_at)
            .field("source_destination", &self.source_destination)
            .finish()
    }
}

impl OutgoingMessage {
    /// Creates a message that is not from an outbox, recorded now. Use it to call or test a
    /// [`Publisher`] without a relay. The other fields can be set afterwards.
    pub fn new(message_id: Uuid, topic: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self {
            seq: 0,
            message_id,
            topic: topic.into(),
            key: None,
            message_type: None,
            payload: payload.into(),
            content_type: None,
            headers: Map::new(),
            traceparent: None,
            recorded_at: OffsetDateTime::now_utc(),
            source_destination: None,
        }
    }
}

/// Publishes effects and waits for the confirmation of the broker.
pub trait Publisher: Send + Sync + 'static {
    /// Publishes one effect and waits for the confirmation of the broker.
    ///
    /// The relay calls this for many effects concurrently, so that confirmations overlap, but for
    /// only one effect of each key at a time. After [`PublishError::Unavailable`] the relay waits
    /// and calls this function again. A publisher that lost its connection reconnects then.
    fn publish(
        &self,
        message: &OutgoingMessage,
    ) -> impl Future<Output = Result<(), PublishError>> + Send;

    /// Connects to the broker without publishing anything. The default implementation returns `Ok`.
    ///
    /// Errors: [`PublishError::Unavailable`] if the broker cannot be reached or rejects the
    /// connection. [`PublishError::TopicUnavailable`] if the broker lacks something that every
    /// effect needs, such as the exchange of the publisher; the error names it.
    fn check(&self) -> impl Future<Output = Result<(), PublishError>> + Send {
        async { Ok(()) }
    }
}

/// The error of an effect that was not published.
///
/// The first two variants are failures of the environment: they use up no attempt, and no effect is
/// parked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The broker is unavailable, independently of the effect. The effect is retried without a
    /// limit.
    #[error("the broker is not available: {0}")]
    Unavailable(#[source] Box<dyn StdError + Send + Sync>),
    /// The broker has no place for this topic or does not allow to publish to it: its exchange,
    /// queue or stream does not exist or is full, or a permission is missing. Effects of this topic
    /// are retried without a limit, and effects of other topics continue.
    #[error("the topic is not available: {0}")]
    TopicUnavailable(#[source] Box<dyn StdError + Send + Sync>),
    /// The broker rejected this effect, but may accept it later. The effect is retried up to the
    /// relay's limit of attempts and then parked.
    #[error("the broker rejected the effect: {0}")]
    Rejected(#[source] Box<dyn StdError + Send + Sync>),
    /// No broker will ever accept this effect. The effect is parked at once.
    #[error("the effect cannot be published: {0}")]
    Permanent(#[source] Box<dyn StdError + Send + Sync>),
}

impl PublishError {
    /// Returns this error and its causes in one line.
    pub(crate) fn causes(&self) -> String {
        causes(self)
    }

    /// Returns the cause of this error, without its kind.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Unavailable(error)
            | Self::TopicUnavailable(error)
            | Self::Rejected(error)
            | Self::Permanent(error) => causes(&**error),
        }
    }
}
