//! An effect that is to be published.

use serde_json::{Map, Value};
use time::OffsetDateTime;
use tokio_postgres::types::Json;
use uuid::Uuid;

use crate::{Error, Row, redacted::Payload};

/// An effect that is to be published.
#[derive(Clone, Debug, PartialEq)]
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
    pub payload: Payload,
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

impl OutgoingMessage {
    /// Creates a message that is not from an outbox, recorded now. Use it to call or test a
    /// publisher without a relay. The other fields can be set afterwards.
    pub fn new(message_id: Uuid, topic: impl Into<String>, payload: impl Into<Payload>) -> Self {
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

impl TryFrom<&Row> for OutgoingMessage {
    type Error = Error;

    fn try_from(row: &Row) -> Result<Self, Error> {
        let headers: Option<Json<_>> = row.try_get("headers")?;
        Ok(Self {
            seq: row.try_get("seq")?,
            message_id: row.try_get("message_id")?,
            topic: row.try_get("topic")?,
            key: row.try_get("key")?,
            message_type: row.try_get("type")?,
            payload: row.try_get::<_, Vec<u8>>("payload")?.into(),
            content_type: row.try_get("content_type")?,
            headers: headers.map(|Json(headers)| headers).unwrap_or_default(),
            traceparent: row.try_get("traceparent")?,
            recorded_at: row.try_get("recorded_at")?,
            source_destination: row.try_get("source_destination")?,
        })
    }
}
