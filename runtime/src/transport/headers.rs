//! Defines header names for the message properties that a broker does not support itself, and
//! converts a message to headers and back.

use std::{borrow::Cow, collections::BTreeMap};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use idem_client::relay::OutgoingMessage;
use serde_json::Value;
use time::format_description::well_known::Rfc3339;

use crate::Message;

/// The message id of the sender.
pub const MESSAGE_ID: &str = "message-id";
/// The correlation id: the id of the conversation that the message belongs to.
pub const CORRELATION_ID: &str = "correlation-id";
/// The type of the message.
pub const MESSAGE_TYPE: &str = "message-type";
/// The content type of the payload.
pub const CONTENT_TYPE: &str = "content-type";
/// The key of the message. Messages of one key keep their order.
pub const KEY: &str = "idem-key";
/// The W3C trace context. The W3C defines this name.
pub const TRACEPARENT: &str = "traceparent";
/// The destination of the message that an effect results from.
pub const SOURCE_DESTINATION: &str = "idem-source-destination";
/// The time when an effect was recorded, as in RFC 3339. The broker's own time of the message is
/// that of its publication, because brokers delete messages by their age.
pub const RECORDED_AT: &str = "idem-recorded-at";
/// The [topic](Message::topic) of a dead letter, so that a requeued message has the same topic.
pub(crate) const SOURCE_TOPIC: &str = "idem-source-topic";
/// The [coordinates](Message::coordinates) of a dead letter, as `topic/partition/offset`.
pub(crate) const SOURCE_COORDINATES: &str = "idem-source-place";
/// The reason for which a message is a dead letter.
pub const DEAD_LETTER_REASON: &str = "idem-dead-letter-reason";

/// A function that sets one property of a message.
pub type With = fn(Message, String) -> Message;

/// Returns a header's value as text: a string without quotes, any other value as JSON.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns UTF-8 text unchanged and other bytes in base64, so that different bytes stay different.
pub fn bytes(bytes: &[u8]) -> String {
    match str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => BASE64_STANDARD.encode(bytes),
    }
}

/// Returns the headers of an effect: first `own`, the properties that the broker does not support
/// itself, and those that no broker supports. Then come the headers of the effect that have other
/// names. Headers that [belong to a delivery](belongs_to_a_delivery) are left out, because a handler
/// may copy the headers of its message.
pub fn outgoing<'a>(
    message: &'a OutgoingMessage,
    own: &[(&'a str, Option<&str>)],
) -> Vec<(&'a str, Cow<'a, Value>)> {
    let recorded_at = message.recorded_at.format(&Rfc3339).ok();
    let of_every_broker = [
        (TRACEPARENT, message.traceparent.as_deref()),
        (SOURCE_DESTINATION, message.source_destination.as_deref()),
        (RECORDED_AT, recorded_at.as_deref()),
    ];
    let mut headers: Vec<_> = own
        .iter()
        .chain(&of_every_broker)
        .filter_map(|(name, value)| Some((*name, Cow::Owned((*value)?.into()))))
        .collect();
    for (name, value) in &message.headers {
        let is_set = headers.iter().any(|(set, _)| set == name);
        if !is_set && !belongs_to_a_delivery(name) {
            headers.push((name, Cow::Borrowed(value)));
        }
    }
    headers
}

/// Returns whether a header describes the former delivery of a message, or is an instruction to the
/// broker that took it. A message that is made from another one must not have it: it would be a
/// duplicate of the other one, count as delivered, be refused, expire, or reach other queues. The
/// SQL function `idem.headers_to_forward` has the same list.
pub fn belongs_to_a_delivery(name: &str) -> bool {
    const NAMES: [&str; 6] = [
        MESSAGE_ID,
        "bcc",
        "cc",
        "x-acquired-count",
        "x-death",
        "x-delivery-count",
    ];
    const PREFIXES: [&str; 5] = [
        "idem-dead-letter-",
        "idem-source-",
        "nats-",
        "x-first-death-",
        "x-last-death-",
    ];
    let name = name.to_ascii_lowercase();
    NAMES.contains(&name.as_str()) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns a message with all these headers, and with the properties that are read from them.
pub fn incoming(
    topic: impl Into<String>,
    payload: impl Into<Bytes>,
    headers: BTreeMap<String, String>,
) -> Message {
    let mut message = Message::new(topic, payload);
    let take: [(_, With); 5] = [
        (MESSAGE_ID, Message::with_message_id),
        (CORRELATION_ID, Message::with_correlation_id),
        (KEY, Message::with_key),
        (MESSAGE_TYPE, Message::with_type),
        (CONTENT_TYPE, Message::with_content_type),
    ];
    for (name, with) in take {
        if let Some(value) = headers.get(name) {
            message = with(message, value.clone());
        }
    }
    headers.into_iter().fold(message, |message, (name, value)| {
        message.with_header(name, value)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn bytes_that_are_not_text_stay_different() {
        assert_eq!(bytes("Kürzel".as_bytes()), "Kürzel");
        assert_ne!(bytes(&[0xff, 1]), bytes(&[0xff, 2]));
    }

    #[test]
    fn headers_round_trip() {
        let mut effect = OutgoingMessage::new(Uuid::from_u128(1), "orders", "{}");
        effect.headers.insert("attempt".into(), json!(3));
        effect.headers.insert("note".into(), json!("text"));
        effect
            .headers
            .insert(KEY.into(), json!("replaced by the key of the effect"));
        let own = [
            (MESSAGE_ID, Some("m-1")),
            (CORRELATION_ID, Some("c-1")),
            (KEY, Some("k-1")),
            (MESSAGE_TYPE, Some("placed")),
            (CONTENT_TYPE, Some("application/json")),
        ];
        let pairs: Vec<_> = outgoing(&effect, &own)
            .into_iter()
            .map(|(name, value)| (name.to_owned(), text(&value)))
            .collect();
        assert_eq!(pairs.len(), 8, "{pairs:?}");

        let message = incoming("orders", "{}", pairs.into_iter().collect());
        assert_eq!(message.message_id(), Some("m-1"));
        assert_eq!(message.correlation_id(), Some("c-1"));
        assert_eq!(message.key(), Some("k-1"));
        assert_eq!(message.message_type(), Some("placed"));
        assert_eq!(message.content_type(), Some("application/json"));
        assert_eq!(message.header("attempt"), Some("3"));
        assert_eq!(message.header("note"), Some("text"));
        assert_eq!(message.header(TRACEPARENT), None);
    }
}
