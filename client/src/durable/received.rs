//! A leased message of the inbox.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use serde_json::{Map, Value};
use time::OffsetDateTime;
use tokio_postgres::Row;

use crate::{
    Destination, Error, Message, MessageId,
    dead_letter_headers::{CORRELATION_ID, MESSAGE_ID, SOURCE_PLACE, SOURCE_TOPIC, place},
    redacted::Length,
    stored::Stored,
};

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
    /// Returns the number of bytes of the payload and of the names and values of the headers.
    pub(super) fn size(&self) -> usize {
        let size = |value: &Value| {
            value
                .as_str()
                .map_or_else(|| value.to_string().len(), str::len)
        };
        let headers = self
            .headers
            .iter()
            .map(|(name, value)| name.len() + size(value));
        self.payload.len() + headers.sum::<usize>()
    }

    /// Converts the received message to the message that [`Idem::process`](crate::Idem::process)
    /// takes. The claim of that message removes it from the inbox, in the transaction of the
    /// handler. The topic of a message that was rejected and requeued is the topic that it was
    /// delivered from; the topic of any other message is the destination.
    pub fn message(&self, destination: &Destination) -> Message {
        let stored = Stored {
            id: self.id.clone(),
            destination: destination.clone(),
            was_unrouted: false,
            token: self.token,
            last_error: self.last_error.clone(),
            is_claimed: Arc::default(),
        };
        let header = |name: &str| self.headers.get(name).and_then(Value::as_str);
        let mut message = Message::new(
            header(SOURCE_TOPIC).unwrap_or(destination.as_str()),
            self.payload.clone(),
        )
        .with_destination(destination.clone())
        .with_message_id(self.id.to_string())
        .with_content_type(self.content_type.as_str())
        .with_deliveries(u32::try_from(self.attempt).unwrap_or(1))
        .with_stored(stored);
        for (name, value) in &self.headers {
            let value = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            message = message.with_header(name, value);
        }
        if let Some(traceparent) = &self.traceparent {
            message = message.with_header("traceparent", traceparent);
        }
        if let Some(at) = header(SOURCE_PLACE).and_then(place) {
            message = message.with_coordinates(at);
        }
        if let Some(id) = header(CORRELATION_ID) {
            message = message.with_correlation_id(id);
        }
        if let Some(key) = &self.key {
            message = message.with_key(key);
        }
        if let Some(message_type) = &self.message_type {
            message = message.with_type(message_type);
        }
        message
    }
}

impl Received {
    /// Converts a message that matched no route when it was received. The result is the message
    /// that its broker delivered, so that the policy reads its id again.
    pub(super) fn unrouted_message(&self, inbox: &Destination) -> Message {
        let message = self.message(inbox);
        let id = message.header(MESSAGE_ID).map(str::to_owned);
        message.without_identity(id)
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::InboxMessage, *};

    /// A message that a broker delivered reaches the handler with the same content after it was
    /// stored in the inbox.
    #[test]
    fn message_from_a_broker_keeps_its_content() {
        let delivered = Message::new("queue", "[1]")
            .with_message_id("m-1")
            .with_correlation_id("c-1")
            .with_key("k")
            .with_type("T")
            .with_content_type("application/json")
            .with_header("schema", "7");
        let stored = InboxMessage::from(&delivered);
        let received = Received {
            token: 5,
            seq: 1,
            id: MessageId::text("m-1").unwrap(),
            key: stored.key.clone(),
            message_type: stored.message_type.clone(),
            payload: stored.payload.clone(),
            content_type: stored.content_type.clone().unwrap(),
            headers: stored.headers.clone(),
            traceparent: Some("00-1-2-01".into()),
            attempt: 3,
            received_at: OffsetDateTime::UNIX_EPOCH,
            last_error: Some("not yet".into()),
            lease_expired: false,
        };
        let message = received.message(&Destination::new("orders.bill").unwrap());
        assert_eq!(message.destination().unwrap().as_str(), "orders.bill");
        assert_eq!(message.message_id(), Some("m-1"));
        assert_eq!(message.correlation_id(), Some("c-1"));
        assert_eq!(
            (message.key(), message.message_type()),
            (Some("k"), Some("T"))
        );
        assert_eq!(message.content_type(), Some("application/json"));
        assert_eq!(message.json::<[u8; 1]>().unwrap(), [1]);
        assert_eq!(message.header("schema"), Some("7"));
        assert_eq!(message.header("traceparent"), Some("00-1-2-01"));
        assert_eq!(
            (message.deliveries(), message.last_error()),
            (Some(3), Some("not yet"))
        );
        assert_eq!(stored.headers_value().unwrap()["schema"], json!("7"));
    }
}
