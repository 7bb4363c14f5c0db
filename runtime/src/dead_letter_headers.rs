//! The parts of a broker message that a dead letter keeps.

use idem_client::{inbox::InboxMessage, sql::without_zero_bytes};
use serde_json::{Map, Value};

use crate::{
    Message,
    transport::{
        Coordinates,
        headers::{
            CONTENT_TYPE, CORRELATION_ID, KEY, MESSAGE_ID, MESSAGE_TYPE, SOURCE_PLACE, SOURCE_TOPIC,
        },
    },
};

/// Headers that count deliveries. A dead letter does not keep them: a dead letter without an id is
/// identified by a hash that includes its headers, so the headers must be the same for each
/// delivery of the message.
const COUNTERS: [&str; 2] = ["x-delivery-count", "x-acquired-count"];

const LONGEST_KEY_BYTES: usize = 1024;
const LONGEST_NAME_BYTES: usize = 255;

/// Returns what a dead letter keeps of a message.
pub(crate) fn dead_letter_of(message: &Message) -> InboxMessage {
    let mut headers: Map<String, Value> = message
        .headers()
        .iter()
        .filter(|(name, _)| !COUNTERS.contains(&name.as_str()))
        .map(|(name, value)| (without_zero_bytes(name), without_zero_bytes(value).into()))
        .collect();
    if let Some(id) = message.correlation_id() {
        headers.insert(CORRELATION_ID.into(), without_zero_bytes(id).into());
    }
    if let Some(id) = message.message_id() {
        headers.insert(MESSAGE_ID.into(), without_zero_bytes(id).into());
    }
    if let Some(at) = message.coordinates() {
        let place = format!("{}/{}/{}", at.topic, at.partition, at.offset);
        headers.insert(SOURCE_PLACE.into(), without_zero_bytes(&place).into());
    }
    headers.insert(
        SOURCE_TOPIC.into(),
        without_zero_bytes(message.topic()).into(),
    );
    let mut column = |name: &str, text: Option<&str>, longest: usize| {
        let text = without_zero_bytes(text.filter(|text| !text.is_empty())?);
        if text.len() <= longest {
            return Some(text);
        }
        // The column cannot hold the text. A header keeps it, so that nothing is lost.
        headers.insert(name.into(), text.into());
        None
    };
    let key = column(KEY, message.key(), LONGEST_KEY_BYTES);
    let message_type = column(MESSAGE_TYPE, message.message_type(), LONGEST_NAME_BYTES);
    let content_type = column(CONTENT_TYPE, message.content_type(), LONGEST_NAME_BYTES);
    let mut kept = InboxMessage::bytes(message.payload().clone());
    kept.headers = headers;
    kept.key = key;
    kept.message_type = message_type;
    kept.content_type = content_type;
    kept
}

/// Parses the coordinates that [`SOURCE_PLACE`] holds.
pub(crate) fn place(text: &str) -> Option<Coordinates> {
    let mut parts = text.rsplitn(3, '/');
    let (offset, partition, topic) = (parts.next()?, parts.next()?, parts.next()?);
    Some(Coordinates::new(
        topic,
        partition.parse().ok()?,
        offset.parse().ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn dead_letter_keeps_what_the_database_can_store() {
        let message = Message::new("queue", "{}")
            .with_message_id("m")
            .with_correlation_id("c")
            .with_coordinates(Coordinates::new("a/b", 2, 7))
            .with_key("k".repeat(2000))
            .with_type("")
            .with_content_type("text/plain")
            .with_header("x-delivery-count", "3")
            .with_header("zero", "a\0b");
        let kept = dead_letter_of(&message);
        assert_eq!((kept.key, kept.message_type), (None, None));
        assert_eq!(kept.content_type.as_deref(), Some("text/plain"));
        let headers = json!({
            "correlation-id": "c", "message-id": "m", "idem-source-place": "a/b/2/7",
            "idem-source-topic": "queue", "idem-key": "k".repeat(2000), "zero": "a\u{fffd}b"
        });
        assert_eq!(Value::Object(kept.headers), headers);
        assert_eq!(place("a/b/2/7").as_ref(), message.coordinates());
        assert_eq!(place("a/b"), None);
    }
}
