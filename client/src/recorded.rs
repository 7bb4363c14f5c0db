//! What an earlier execution recorded, for whoever asks again.

use std::fmt;

use serde_json::Value;
use time::OffsetDateTime;
use tokio_postgres::{GenericClient, Row};
use tracing::Instrument;
use uuid::Uuid;

use crate::{Destination, Error, MessageId, redacted::Length, span};

/// An effect as it was recorded: the same bytes to everyone, as long as the claim is retained.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct RecordedEffect {
    /// The id under which relays publish it; consumers of it dedup by this.
    pub message_id: Uuid,
    /// Its place among the effects of its message.
    pub ordinal: i32,
    /// Where it goes.
    pub topic: String,
    /// Effects of one key keep their order.
    pub key: Option<String>,
    /// What kind of message it is.
    pub message_type: Option<String>,
    /// The payload; JSON is its UTF-8 text.
    pub payload: Vec<u8>,
    /// How to take the payload.
    pub content_type: Option<String>,
    /// The headers, an object.
    pub headers: Option<Value>,
    /// The W3C trace context of the recording transaction.
    pub traceparent: Option<String>,
    /// Not to be published before.
    pub deliver_after: Option<OffsetDateTime>,
    /// When it was recorded.
    pub recorded_at: OffsetDateTime,
}

/// Without the payload, which may hold what no log may show.
impl fmt::Debug for RecordedEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordedEffect")
            .field("message_id", &self.message_id)
            .field("ordinal", &self.ordinal)
            .field("topic", &self.topic)
            .field("key", &self.key)
            .field("message_type", &self.message_type)
            .field("payload", &Length(self.payload.len()))
            .field("content_type", &self.content_type)
            .field("headers", &self.headers)
            .field("traceparent", &self.traceparent)
            .field("deliver_after", &self.deliver_after)
            .field("recorded_at", &self.recorded_at)
            .finish()
    }
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
            payload: row.try_get("payload")?,
            content_type: row.try_get("content_type")?,
            headers: row.try_get("headers")?,
            traceparent: row.try_get("traceparent")?,
            deliver_after: row.try_get("deliver_after")?,
            recorded_at: row.try_get("recorded_at")?,
        })
    }
}

/// Columns by name: a later version may add some.
pub(crate) const EFFECTS: &str = "SELECT message_id, ordinal, topic, key, type, payload, content_type, headers, \
    traceparent, deliver_after, recorded_at FROM idem_effects($1, $2)";

/// The effects that the first execution of this message recorded, in order. Empty when there is no
/// claim.
pub async fn effects(
    client: &impl GenericClient,
    id: &MessageId,
    destination: &Destination,
) -> Result<Vec<RecordedEffect>, Error> {
    let rows = client
        .query_typed(EFFECTS, &[id.parameter(), destination.parameter()])
        .instrument(span::of_message("effects", id, destination))
        .await?;
    rows.iter().map(RecordedEffect::try_from).collect()
}

/// Puts the same effects into the outbox again, under the same message ids, and answers how many.
pub async fn replay_effects(
    client: &impl GenericClient,
    id: &MessageId,
    destination: &Destination,
) -> Result<i32, Error> {
    let row = client
        .query_typed_one(
            "SELECT idem_replay_effects($1, $2)",
            &[id.parameter(), destination.parameter()],
        )
        .instrument(span::of_message("replay_effects", id, destination))
        .await?;
    Ok(row.try_get(0)?)
}
