//! An outgoing message that is recorded with a claim.

use std::fmt;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Serialize, ser::SerializeMap};
use serde_json::{Map, Value};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::Error;

/// An outgoing message that results from processing a message.
///
/// It is recorded with the claim, and a relay publishes it.
///
/// ```
/// use idem_client::Effect;
///
/// #[derive(serde::Serialize)]
/// struct TargetHit { attempt: u32 }
///
/// let effect = Effect::json("range.facts", &TargetHit { attempt: 7 })?
///     .key("player-3")
///     .message_type("TargetHit")
///     .header("schema", 1);
/// # let _ = effect;
/// # Ok::<(), idem_client::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use = "an effect does nothing until it is recorded or sent"]
pub struct Effect {
    pub(crate) topic: String,
    pub(crate) payload: Content,
    pub(crate) key: Option<String>,
    pub(crate) message_type: Option<String>,
    pub(crate) headers: Map<String, Value>,
    pub(crate) message_id: Option<Uuid>,
    pub(crate) deliver_after: Option<OffsetDateTime>,
}

#[derive(Clone, PartialEq)]
pub(crate) enum Content {
    Json(Value),
    Bytes {
        bytes: Vec<u8>,
        content_type: String,
    },
}

/// Shows only the length, because a payload can contain data that must not be logged.
impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = match self {
            Self::Json(json) => json.to_string().len(),
            Self::Bytes { bytes, .. } => bytes.len(),
        };
        write!(f, "{length} bytes")
    }
}

impl Effect {
    /// Creates an effect with a JSON payload.
    ///
    /// Fails with [`Error::Encode`] if `payload` cannot be represented as JSON.
    ///
    /// The payload is stored as `jsonb`. So the order of object members is not kept, and of members
    /// with the same name only the last is kept.
    pub fn json(topic: impl Into<String>, payload: &impl Serialize) -> Result<Self, Error> {
        let payload = serde_json::to_value(payload).map_err(Error::Encode)?;
        Ok(Self::new(topic, Content::Json(payload)))
    }

    /// Creates an effect with any other payload.
    ///
    /// `content_type` tells consumers how to decode `bytes`.
    pub fn bytes(
        topic: impl Into<String>,
        bytes: impl Into<Vec<u8>>,
        content_type: impl Into<String>,
    ) -> Self {
        Self::new(
            topic,
            Content::Bytes {
                bytes: bytes.into(),
                content_type: content_type.into(),
            },
        )
    }

    fn new(topic: impl Into<String>, payload: Content) -> Self {
        Self {
            topic: topic.into(),
            payload,
            key: None,
            message_type: None,
            headers: Map::new(),
            message_id: None,
            deliver_after: None,
        }
    }

    /// Sets the key. A partitioned relay publishes effects with the same key in order.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the type of the message, which is recorded as the member `type`.
    pub fn message_type(mut self, message_type: impl Into<String>) -> Self {
        self.message_type = Some(message_type.into());
        self
    }

    /// Adds a header. Replaces an earlier header with the same name.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.insert_header(name, value);
        self
    }

    /// Returns the headers.
    pub fn headers(&self) -> &Map<String, Value> {
        &self.headers
    }

    /// Adds a header to an effect that another part of the program created, for example in a
    /// filter. Replaces an earlier header with the same name.
    pub fn insert_header(&mut self, name: impl Into<String>, value: impl Into<Value>) {
        self.headers.insert(name.into(), value.into());
    }

    /// Sets the message id.
    ///
    /// By default the server derives an id from the claim. That id is the same at every replay.
    pub fn message_id(mut self, id: Uuid) -> Self {
        self.message_id = Some(id);
        self
    }

    /// Sets the time before which no relay publishes the effect.
    ///
    /// Only effects that are recorded with a claim support this; [`send`](crate::send) fails with
    /// [`Error::Invalid`].
    pub fn deliver_after(mut self, time: OffsetDateTime) -> Self {
        self.deliver_after = Some(time);
        self
    }
}

/// Writes the object that `idem_record_effects` reads. Members without a value are left out.
impl Serialize for Effect {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(None)?;
        object.serialize_entry("topic", &self.topic)?;
        match &self.payload {
            Content::Json(value) => object.serialize_entry("payload", value)?,
            Content::Bytes {
                bytes,
                content_type,
            } => {
                object.serialize_entry("payload_base64", &BASE64_STANDARD.encode(bytes))?;
                object.serialize_entry("content_type", content_type)?;
            }
        }
        if let Some(key) = &self.key {
            object.serialize_entry("key", key)?;
        }
        if let Some(message_type) = &self.message_type {
            object.serialize_entry("type", message_type)?;
        }
        if !self.headers.is_empty() {
            object.serialize_entry("headers", &self.headers)?;
        }
        if let Some(id) = &self.message_id {
            object.serialize_entry("message_id", id)?;
        }
        if let Some(time) = self.deliver_after {
            object.serialize_entry("deliver_after", &Rfc3339(time))?;
        }
        object.end()
    }
}

#[derive(Serialize)]
struct Rfc3339(#[serde(with = "time::serde::rfc3339")] OffsetDateTime);
