//! The effects that an earlier execution recorded.

use serde_json::Value;
use time::OffsetDateTime;
use tracing::Instrument;
use uuid::Uuid;

use crate::{Destination, Error, Executor, MessageId, Row, redacted::Payload, span};

/// An effect as it was recorded. Every reader gets the same bytes as long as the claim is retained.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RecordedEffect {
    /// The message id with which relays publish the effect. Its consumers deduplicate by this id.
    pub message_id: Uuid,
    /// The position of the effect among the effects of its message.
    pub ordinal: i32,
    /// The topic that the effect is published to.
    pub topic: String,
    /// The key. Effects with the same key keep their order.
    pub key: Option<String>,
    /// The type of the message.
    pub message_type: Option<String>,
    /// The payload. A JSON payload is returned as the bytes of its text in UTF-8.
    pub payload: Payload,
    /// The content type of the payload.
    pub content_type: Option<String>,
    /// The headers, a JSON object.
    pub headers: Option<Value>,
    /// The W3C trace context of the recording transaction.
    pub traceparent: Option<String>,
    /// The time before which the effect is not published.
    pub deliver_after: Option<OffsetDateTime>,
    /// When the effect was recorded.
    pub recorded_at: OffsetDateTime,
}

impl TryFrom<&Row> for RecordedEffect {
    type Error = Error;

    fn try_from(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            message_id: row.try_get("message_id")?,
            ordinal: row.try_get("ordinal")?,
            topic: row.try_get("topic")?,
            key: row.try_get("key")?,
            message_type: row.try_get("type")?,
            payload: row.try_get::<_, Vec<u8>>("payload")?.into(),
            content_type: row.try_get("content_type")?,
            headers: row.try_get("headers")?,
            traceparent: row.try_get("traceparent")?,
            deliver_after: row.try_get("deliver_after")?,
            recorded_at: row.try_get("recorded_at")?,
        })
    }
}

/// Reads the recorded effects of a message: id and destination.
///
/// Columns are selected by name, because a later version may add some.
const EFFECTS: &str = "SELECT message_id, ordinal, topic, key, type, payload, \
    content_type, headers, traceparent, deliver_after, recorded_at FROM idem_effects($1, $2)";

/// Returns the effects that the first execution of this message recorded, in order.
///
/// Empty if there is no claim.
pub async fn effects(
    executor: &impl Executor,
    id: &MessageId,
    destination: &Destination,
) -> Result<Vec<RecordedEffect>, Error> {
    let rows = executor
        .fetch_all(EFFECTS, &[id.parameter(), destination.parameter()])
        .instrument(span::of_message("effects", id, destination))
        .await?;
    rows.iter().map(RecordedEffect::try_from).collect()
}
