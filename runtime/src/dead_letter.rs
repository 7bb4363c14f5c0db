//! The dead letter of a message: what it keeps of the message, and how it is stored.

use deadpool_postgres::Pool;
use idem_client::{
    Destination, MessageId, deadletters, inbox::InboxMessage, lease::Held, sql::without_zero_bytes,
};
use serde_json::{Map, Value};

use crate::{
    Error, Message,
    lease::Burial,
    short_transaction::in_short_transaction,
    transport::{
        Coordinates,
        headers::{
            CONTENT_TYPE, CORRELATION_ID, KEY, MESSAGE_ID, MESSAGE_TYPE, SOURCE_COORDINATES,
            SOURCE_TOPIC,
        },
    },
};

/// Headers that count deliveries. A dead letter does not keep them: a dead letter without an id is
/// identified by a hash that includes its headers, so the headers must be the same for each
/// delivery of the message.
const COUNTERS: [&str; 2] = ["x-delivery-count", "x-acquired-count"];

const LONGEST_KEY_BYTES: usize = 1024;
const LONGEST_NAME_BYTES: usize = 255;

impl Burial {
    pub(crate) fn of(message: &Message, reason: impl Into<String>) -> Self {
        Self {
            message: content_of(message),
            reason: reason.into(),
        }
    }

    /// Stores a leased message as a dead letter, in a transaction of its own.
    pub(crate) async fn bury(&self, held: &Held, pool: &Pool) -> Result<(), Error> {
        in_short_transaction(pool, async |client| {
            held.bury(&**client, &self.message, &self.reason).await
        })
        .await?;
        self.log(held.id(), held.destination());
        Ok(())
    }

    /// Stores a message whose lease has ended as a dead letter: see [`reject`](Self::reject).
    pub(crate) async fn bury_unleased(
        &self,
        id: &MessageId,
        destination: &Destination,
        pool: &Pool,
    ) -> Result<bool, Error> {
        let is_new = self.reject(Some(id), destination, pool).await?;
        if is_new {
            self.log(id, destination);
        }
        Ok(is_new)
    }

    /// Stores a message that is not leased as a dead letter. One transaction leases and buries it,
    /// so a caller that is dropped leaves no lease without a known token. Returns false if the
    /// message is a dead letter already or was processed.
    pub(crate) async fn reject(
        &self,
        id: Option<&MessageId>,
        destination: &Destination,
        pool: &Pool,
    ) -> Result<bool, Error> {
        in_short_transaction(pool, async |client| {
            deadletters::reject(&**client, id, destination, &self.message, &self.reason).await
        })
        .await
    }

    fn log(&self, id: &MessageId, destination: &Destination) {
        tracing::warn!(
            reason = self.reason,
            %destination,
            message_id = %id,
            "a message is put into the dead letters"
        );
    }
}

/// Returns what a dead letter keeps of a message.
fn content_of(message: &Message) -> InboxMessage {
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
        let coordinates = format!("{}/{}/{}", at.topic, at.partition, at.offset);
        headers.insert(
            SOURCE_COORDINATES.into(),
            without_zero_bytes(&coordinates).into(),
        );
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

/// Parses the coordinates that [`SOURCE_COORDINATES`] holds.
pub(crate) fn coordinates_of(text: &str) -> Option<Coordinates> {
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
        let kept = content_of(&message);
        assert_eq!((kept.key, kept.message_type), (None, None));
        assert_eq!(kept.content_type.as_deref(), Some("text/plain"));
        let headers = json!({
            "correlation-id": "c", "message-id": "m", "idem-source-place": "a/b/2/7",
            "idem-source-topic": "queue", "idem-key": "k".repeat(2000), "zero": "a\u{fffd}b"
        });
        assert_eq!(Value::Object(kept.headers), headers);
        assert_eq!(coordinates_of("a/b/2/7").as_ref(), message.coordinates());
        assert_eq!(coordinates_of("a/b"), None);
    }
}
