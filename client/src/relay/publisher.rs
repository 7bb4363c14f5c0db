//! Where effects go. Small, so that one's own transport takes 30 lines.

use std::{error::Error as StdError, fmt, future::Future};

use bytes::Bytes;
use serde_json::{Map, Value};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{error::causes, redacted::Length};

/// An effect on its way to a broker.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct OutgoingMessage {
    /// Its number in the outbox, which gives the order; 0 when it comes from none.
    pub seq: i64,
    /// Give it to the broker as the message id: brokers that dedup do it by this, and so do
    /// consumers.
    pub message_id: Uuid,
    /// Where it goes: exchange, subject, topic, or a destination in the same database.
    pub topic: String,
    /// Effects of one key are published one after the other.
    pub key: Option<String>,
    /// What kind of message it is.
    pub message_type: Option<String>,
    /// The payload; JSON is its UTF-8 text.
    pub payload: Bytes,
    /// How to take the payload.
    pub content_type: Option<String>,
    /// The headers.
    pub headers: Map<String, Value>,
    /// The W3C trace context of the recording transaction: goes out as header `traceparent`.
    pub traceparent: Option<String>,
    /// When it was recorded, by the server's clock.
    pub recorded_at: OffsetDateTime,
    /// The destination whose handling it results from; `None` for a plain send.
    pub source_destination: Option<String>,
}

/// Without the payload, which may hold what no log may show.
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
    /// A message that comes from no outbox, recorded now: for whoever uses or tries out a
    /// [`Publisher`] alone. What it does not have yet can be set.
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

/// Publishes effects, and answers only when the broker has confirmed.
pub trait Publisher: Send + Sync + 'static {
    /// Publishes one effect and waits for the broker's confirmation.
    ///
    /// Called for many effects at once, so that confirmations overlap; two effects of one key are
    /// never under way together. After [`PublishError::Unavailable`] the caller waits and calls
    /// again: a publisher that lost its connection connects anew then.
    fn publish(
        &self,
        message: &OutgoingMessage,
    ) -> impl Future<Output = Result<(), PublishError>> + Send;

    /// Connects to the broker, and publishes nothing. `Ok` unless implemented.
    ///
    /// [`PublishError::Unavailable`] when the broker cannot be reached or refuses the connection,
    /// [`PublishError::TopicUnavailable`] when it lacks what every effect needs, such as the
    /// exchange of the publisher: the error names it.
    fn check(&self) -> impl Future<Output = Result<(), PublishError>> + Send {
        async { Ok(()) }
    }
}

/// Why an effect was not published.
///
/// The first two are failures of the environment: they use up no attempt, and park nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The broker is away, which says nothing about the effect: it is tried again for as long as it
    /// takes.
    #[error("the broker is not available: {0}")]
    Unavailable(#[source] Box<dyn StdError + Send + Sync>),
    /// The broker has no place for this topic, or refuses to publish to it: its exchange, queue or
    /// stream does not exist, is full, or a permission is missing. Effects of this topic wait for
    /// as long as it takes, and effects of other topics go on.
    #[error("the topic is not available: {0}")]
    TopicUnavailable(#[source] Box<dyn StdError + Send + Sync>),
    /// The broker did not take this effect, but may later: it is tried again, up to the relay's
    /// limit, and then parked.
    #[error("the broker did not take it: {0}")]
    Rejected(#[source] Box<dyn StdError + Send + Sync>),
    /// No broker will ever take this effect: it is parked at once.
    #[error("it cannot be published: {0}")]
    Permanent(#[source] Box<dyn StdError + Send + Sync>),
}

impl PublishError {
    /// This error and its causes on one line.
    pub(crate) fn causes(&self) -> String {
        causes(self)
    }

    /// What is behind this error, without its kind.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Unavailable(error)
            | Self::TopicUnavailable(error)
            | Self::Rejected(error)
            | Self::Permanent(error) => causes(&**error),
        }
    }
}
