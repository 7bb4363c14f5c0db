//! A message to be stored in the inbox or as a dead letter.

use serde::Serialize;
use serde_json::{Map, Value};
use time::OffsetDateTime;

use crate::{Error, redacted::Payload};

const JSON: &str = "application/json";

/// The content of a message to be stored, in the inbox or as a dead letter: everything but its id
/// and its destination.
///
/// ```
/// use idem_client::inbox::InboxMessage;
///
/// let message = InboxMessage::json(&serde_json::json!({"order": 4711}))?
///     .key("customer-7")
///     .message_type("OrderPlaced");
/// # let _ = message;
/// # Ok::<(), idem_client::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[must_use = "a message is stored only when it is passed to a function that stores it"]
pub struct InboxMessage {
    /// The payload.
    pub payload: Payload,
    /// The content type of the payload.
    pub content_type: Option<String>,
    /// The key.
    pub key: Option<String>,
    /// The type of the message.
    pub message_type: Option<String>,
    /// The headers.
    pub headers: Map<String, Value>,
    /// The time before which the message is not handled. A dead letter does not keep it.
    pub deliver_after: Option<OffsetDateTime>,
}

impl InboxMessage {
    /// Creates a message with a JSON payload. Returns [`Error::Encode`] if `payload` cannot be
    /// serialized as JSON.
    pub fn json(payload: &impl Serialize) -> Result<Self, Error> {
        let payload = serde_json::to_vec(payload).map_err(Error::Encode)?;
        Ok(Self::bytes(payload).content_type(JSON))
    }

    /// Creates a message with any other payload.
    pub fn bytes(payload: impl Into<Payload>) -> Self {
        Self {
            payload: payload.into(),
            content_type: None,
            key: None,
            message_type: None,
            headers: Map::new(),
            deliver_after: None,
        }
    }

    /// Sets the content type of the payload.
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = Some(content_type.into());
        self
    }

    /// Sets the key. Messages of one key are handled one after the other, in the order in which
    /// they were received.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the type of the message.
    pub fn message_type(mut self, message_type: impl Into<String>) -> Self {
        self.message_type = Some(message_type.into());
        self
    }

    /// Adds a header. Replaces an earlier header of the same name.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Sets the time before which the message is not handled, by the server's clock. Until then the
    /// message does not block other messages of its key.
    pub fn deliver_after(mut self, time: OffsetDateTime) -> Self {
        self.deliver_after = Some(time);
        self
    }

    /// Returns the headers as a parameter of the SQL functions.
    pub fn headers_value(&self) -> Option<Value> {
        (!self.headers.is_empty()).then(|| Value::Object(self.headers.clone()))
    }
}
