//! A leased message of the inbox.

use std::fmt;

use bytes::Bytes;
use serde_json::{Map, Value};
use time::OffsetDateTime;

use crate::{Error, MessageId, Row, redacted::Length};

/// A message of the durable inbox, under a lease.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
#[must_use = "the message stays leased until it is settled or its lease expires"]
pub struct Received {
    /// The token that proves the lease.
    pub token: i64,
    /// The number of the message in the inbox, which defines the order.
    pub seq: i64,
    /// The id under which the message was received.
    pub id: MessageId,
    /// The key. Messages of one key are leased one after the other.
    pub key: Option<String>,
    /// The type of the message.
    pub message_type: Option<String>,
    /// The payload. A JSON payload is UTF-8 text.
    pub payload: Bytes,
    /// The content type of the payload.
    pub content_type: String,
    /// The headers.
    pub headers: Map<String, Value>,
    /// The W3C trace context that was received with the message.
    pub traceparent: Option<String>,
    /// The number of this attempt, from 1. Attempts that were released without a failure are not
    /// counted.
    pub attempt: i32,
    /// When the message was received, by the server's clock.
    pub received_at: OffsetDateTime,
    /// Why the last attempt failed.
    pub last_error: Option<String>,
    /// Whether the lease of the previous attempt expired. If so, the message may have crashed its
    /// consumer.
    pub lease_expired: bool,
}

/// Omits the payload, which may contain confidential data.
impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received")
            .field("token", &self.token)
            .field("seq", &self.seq)
            .field("id", &self.id)
            .field("key", &self.key)
            .field("message_type", &self.message_type)
            .field("payload", &Length(self.payload.len()))
            .field("content_type", &self.content_type)
            .field("headers", &self.headers)
            .field("traceparent", &self.traceparent)
            .field("attempt", &self.attempt)
            .field("received_at", &self.received_at)
            .field("last_error", &self.last_error)
            .field("lease_expired", &self.lease_expired)
            .finish()
    }
}

impl Received {
    /// Creates a message for a test of code that handles received messages: its first attempt,
    /// received now, without key, type and headers. The other fields can be set afterwards. The
    /// server does not know `token`.
    pub fn new(token: i64, id: MessageId, payload: impl Into<Bytes>) -> Self {
        Self {
            token,
            seq: 0,
            id,
            key: None,
            message_type: None,
            payload: payload.into(),
            content_type: "application/octet-stream".into(),
            headers: Map::new(),
            traceparent: None,
            attempt: 1,
            received_at: OffsetDateTime::now_utc(),
            last_error: None,
            lease_expired: false,
        }
    }
}

impl TryFrom<&Row> for Received {
    type Error = Error;

    fn try_from(row: &Row) -> Result<Self, Error> {
        let headers = match row.try_get("headers")? {
            Some(Value::Object(headers)) => headers,
            None => Map::new(),
            Some(other) => return Err(Error::Unexpected(format!("headers {other}"))),
        };
        Ok(Self {
            token: row.try_get("token")?,
            seq: row.try_get("seq")?,
            id: MessageId::text(row.try_get::<_, String>("id")?)?,
            key: row.try_get("key")?,
            message_type: row.try_get("type")?,
            payload: Bytes::from(row.try_get::<_, Vec<u8>>("payload")?),
            content_type: row.try_get("content_type")?,
            headers,
            traceparent: row.try_get("traceparent")?,
            attempt: row.try_get("attempt")?,
            received_at: row.try_get("received_at")?,
            last_error: row.try_get("last_error")?,
            lease_expired: row.try_get("lease_expired")?,
        })
    }
}
