//! Converts messages of the inbox to messages of a consumer, and back.

use std::time::{Duration, Instant};

use idem_client::{
    Destination,
    inbox::{InboxMessage, Received},
};
use serde_json::Value;

use crate::{
    Message,
    dead_letter::coordinates_of,
    stored::Stored,
    transport::headers::{
        self, CORRELATION_ID, MESSAGE_ID, SOURCE_COORDINATES, SOURCE_TOPIC, TRACEPARENT,
    },
};

impl Message {
    /// Converts a message that the inbox has leased to the message that
    /// [`Idem::process`](crate::Idem::process) takes.
    ///
    /// When this message is claimed, the claim deletes its pending row, in the transaction of the
    /// handler. The topic of a message that was rejected and requeued is the topic that it was
    /// delivered from; the topic of any other message is the destination.
    pub fn of_inbox(received: &Received, destination: &Destination) -> Self {
        let held = received.held(destination, Duration::ZERO, Instant::now());
        Self::leased(received, Stored::new(held, false))
    }

    /// Converts a message that the inbox has leased. If it matched no route when it was received,
    /// the result is the message that its broker delivered, so that the policy reads its id again.
    pub(super) fn leased(received: &Received, stored: Stored) -> Self {
        let (destination, was_unrouted) = (stored.held.destination().clone(), stored.was_unrouted);
        let header = |name: &str| received.headers.get(name).and_then(Value::as_str);
        let mut message = Self::new(
            header(SOURCE_TOPIC).unwrap_or(destination.as_str()),
            received.payload.0.clone(),
        )
        .with_destination(destination)
        .with_message_id(received.id.to_string())
        .with_content_type(received.content_type.as_str())
        .with_deliveries(u32::try_from(received.attempt).unwrap_or(1))
        .with_stored(stored);
        for (name, value) in &received.headers {
            message = message.with_header(name, headers::text(value));
        }
        if let Some(traceparent) = &received.traceparent {
            message = message.with_header(TRACEPARENT, traceparent);
        }
        if let Some(at) = header(SOURCE_COORDINATES).and_then(coordinates_of) {
            message = message.with_coordinates(at);
        }
        if let Some(id) = header(CORRELATION_ID) {
            message = message.with_correlation_id(id);
        }
        if let Some(key) = &received.key {
            message = message.with_key(key);
        }
        if let Some(message_type) = &received.message_type {
            message = message.with_type(message_type);
        }
        if !was_unrouted {
            return message;
        }
        let id = message.header(MESSAGE_ID).map(str::to_owned);
        message.without_identity(id)
    }
}

/// Copies everything that the broker delivered except the id, which becomes the identity of the
/// stored message. An empty key, type or content type is left out.
impl From<&Message> for InboxMessage {
    fn from(message: &Message) -> Self {
        let mut stored = Self::bytes(message.payload().clone());
        for (name, value) in message.headers() {
            stored = stored.header(name, value.as_str());
        }
        if let Some(id) = message.correlation_id() {
            // The inbox has no column for the correlation id, so it is stored as a header.
            stored = stored.header(CORRELATION_ID, id);
        }
        stored.content_type = given(message.content_type());
        stored.key = given(message.key());
        stored.message_type = given(message.message_type());
        stored
    }
}

/// Some brokers use an empty text for "no value". The database rejects an empty text, so leave it
/// out.
fn given(text: Option<&str>) -> Option<String> {
    text.filter(|text| !text.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use idem_client::MessageId;

    use super::*;

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
        let expected = InboxMessage::bytes("[1]")
            .content_type("application/json")
            .key("k")
            .message_type("T")
            .header("schema", "7")
            .header(CORRELATION_ID, "c-1");
        assert_eq!(InboxMessage::from(&delivered), expected);

        let mut received = Received::new(5, MessageId::text("m-1").unwrap(), "[1]");
        received.key = Some("k".into());
        received.message_type = Some("T".into());
        received.content_type = "application/json".into();
        received.headers.insert("schema".into(), "7".into());
        received.headers.insert(CORRELATION_ID.into(), "c-1".into());
        received.traceparent = Some("00-1-2-01".into());
        received.attempt = 3;
        received.last_error = Some("not yet".into());
        let message = Message::of_inbox(&received, &Destination::new("orders.bill").unwrap());
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
    }
}
