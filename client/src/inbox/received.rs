//! A leased message of the inbox.

use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use time::OffsetDateTime;
use tokio_postgres::types::Json;

use crate::{Destination, Error, MessageId, Row, lease::Held, redacted::Payload};

/// A message of the durable inbox, under a lease.
#[derive(Clone, Debug, PartialEq)]
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
    pub payload: Payload,
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

impl Received {
    /// Creates a message for a test of code that handles received messages: its first attempt,
    /// received now, without key, type and headers. The other fields can be set afterwards. The
    /// server does not know `token`.
    pub fn new(token: i64, id: MessageId, payload: impl Into<Payload>) -> Self {
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

    /// Returns the lease of the message. `destination` and `lease` are those of the call of
    /// [`next`](super::next), and `asked_at` is a time before this call.
    pub fn held(&self, destination: &Destination, lease: Duration, asked_at: Instant) -> Held {
        Held::new(
            &self.id,
            destination,
            self.token,
            self.attempt,
            self.last_error.clone(),
            lease,
            asked_at,
        )
    }
}

impl TryFrom<&Row> for Received {
    type Error = Error;

    fn try_from(row: &Row) -> Result<Self, Error> {
        let headers: Option<Json<_>> = row.try_get("headers")?;
        Ok(Self {
            token: row.try_get("token")?,
            seq: row.try_get("seq")?,
            id: MessageId::text(row.try_get::<_, String>("id")?)?,
            key: row.try_get("key")?,
            message_type: row.try_get("type")?,
            payload: row.try_get::<_, Vec<u8>>("payload")?.into(),
            content_type: row.try_get("content_type")?,
            headers: headers.map(|Json(headers)| headers).unwrap_or_default(),
            traceparent: row.try_get("traceparent")?,
            attempt: row.try_get("attempt")?,
            received_at: row.try_get("received_at")?,
            last_error: row.try_get("last_error")?,
            lease_expired: row.try_get("lease_expired")?,
        })
    }
}
