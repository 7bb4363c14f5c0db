//! A message to be stored in the inbox.

use std::fmt;

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Map, Value};
use time::OffsetDateTime;

use crate::{Error, redacted::Length};

const JSON: &str = "application/json";

/// The content of a message to be stored in the inbox: everything but its id and its destination.
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
#[derive(Clone, PartialEq)]
#[must_use = "a message is stored only when it is passed to `receive`"]
pub struct InboxMessage {
    pub(super) payload: Bytes,
    pub(super) content_type: Option<String>,
    pub(super) key: Option<String>,
    pub(super) message_type: Option<String>,
    pub(super) headers: Map<String, Value>,
    pub(super) deliver_after: Option<OffsetDateTime>,
}

/// Omits the payload, which may contain confidential data.
impl fmt::Debug for InboxMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboxMessage")
            .field("payload", &Length(self.payload.len()))
            .field("content_type", &self.content_type)
            .field("key", &self.key)
            .field("message_type", &self.message_type)
            .field("headers", &self.headers)
            .field("deliver_after", &self.deliver_after)
            .finish()
    }
}

impl InboxMessage {
    /// Creates a message with a JSON payload. Returns [`Error::Encode`] if `payload` cannot be
    /// serialized as JSON.
    pub fn json(payload: &impl Serialize) -> Result<Self, Error> {
        let payload = serde_json::to_vec(payload).map_err(Error::Encode)?;
        Ok(Self::bytes(payload).content_type(JSON))
    }

    /// Creates a message with any other payload.
    pub fn bytes(payload: impl Into<Bytes>) -> Self {
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
