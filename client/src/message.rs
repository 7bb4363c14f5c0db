//! An incoming message, whatever broker it came from.

use std::{collections::BTreeMap, fmt, sync::Arc};

use bytes::Bytes;
use time::OffsetDateTime;

use crate::{Destination, Error, redacted::Length, stored::Stored};

/// A message as a consumer meets it. Cheap to clone; its payload is shared.
///
/// ```
/// use idem_client::Message;
///
/// let message = Message::new("orders.reserve-inventory", r#"{"order": 4711}"#)
///     .with_message_id("order-4711")
///     .with_key("customer-7");
/// assert_eq!(message.destination()?.as_str(), "orders.reserve-inventory");
/// # Ok::<(), idem_client::Error>(())
/// ```
#[derive(Clone)]
pub struct Message(Arc<Parts>);

#[derive(Clone, Default)]
struct Parts {
    topic: String,
    destination: Option<Destination>,
    message_id: Option<String>,
    correlation_id: Option<String>,
    key: Option<String>,
    message_type: Option<String>,
    content_type: Option<String>,
    headers: BTreeMap<String, String>,
    payload: Bytes,
    coordinates: Option<Coordinates>,
    sent_at: Option<OffsetDateTime>,
    deliveries: Option<u32>,
    stored: Option<Stored>,
}

/// Without the payload, which may hold what no log may show.
impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("topic", &self.topic)
            .field("destination", &self.destination)
            .field("message_id", &self.message_id)
            .field("correlation_id", &self.correlation_id)
            .field("key", &self.key)
            .field("message_type", &self.message_type)
            .field("content_type", &self.content_type)
            .field("headers", &self.headers)
            .field("payload", &Length(self.payload.len()))
            .field("coordinates", &self.coordinates)
            .field("sent_at", &self.sent_at)
            .field("deliveries", &self.deliveries)
            .field("stored", &self.stored)
            .finish()
    }
}

/// Where a broker keeps a message: the same at every delivery.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Coordinates {
    /// The topic, stream or queue.
    pub topic: String,
    /// The partition; 0 where there are none.
    pub partition: i32,
    /// The position in it.
    pub offset: i64,
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Message {
    /// A message that was delivered from a topic: the queue, subject or topic that the consumer
    /// listens to.
    pub fn new(topic: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self(Arc::new(Parts {
            topic: topic.into(),
            payload: payload.into(),
            ..Parts::default()
        }))
    }

    fn with(mut self, change: impl FnOnce(&mut Parts)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// The bytes of its payload and of the names and values of its headers.
    pub(crate) fn size(&self) -> usize {
        let headers = self
            .0
            .headers
            .iter()
            .map(|(name, value)| name.len() + value.len());
        self.0.payload.len() + headers.sum::<usize>()
    }

    /// Who handles it; its topic unless given.
    #[must_use]
    pub fn with_destination(self, destination: Destination) -> Self {
        self.with(|parts| parts.destination = Some(destination))
    }

    /// The sender's message id.
    #[must_use]
    pub fn with_message_id(self, id: impl Into<String>) -> Self {
        self.with(|parts| parts.message_id = Some(id.into()))
    }

    /// The id of the conversation that it belongs to.
    #[must_use]
    pub fn with_correlation_id(self, id: impl Into<String>) -> Self {
        self.with(|parts| parts.correlation_id = Some(id.into()))
    }

    /// Messages of one key keep their order, when that is asked for.
    #[must_use]
    pub fn with_key(self, key: impl Into<String>) -> Self {
        self.with(|parts| parts.key = Some(key.into()))
    }

    /// What kind of message it is.
    #[must_use]
    pub fn with_type(self, message_type: impl Into<String>) -> Self {
        self.with(|parts| parts.message_type = Some(message_type.into()))
    }

    /// How to take the payload.
    #[must_use]
    pub fn with_content_type(self, content_type: impl Into<String>) -> Self {
        self.with(|parts| parts.content_type = Some(content_type.into()))
    }

    /// Adds one header; a later one of the same name takes its place.
    #[must_use]
    pub fn with_header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.with(|parts| {
            parts.headers.insert(name.into(), value.into());
        })
    }

    /// Where the broker keeps it.
    #[must_use]
    pub fn with_coordinates(self, coordinates: Coordinates) -> Self {
        self.with(|parts| parts.coordinates = Some(coordinates))
    }

    /// When it was sent, by the sender's clock.
    #[must_use]
    pub fn with_sent_at(self, sent_at: OffsetDateTime) -> Self {
        self.with(|parts| parts.sent_at = Some(sent_at))
    }

    /// How often the broker has delivered it, this time included.
    #[must_use]
    pub fn with_deliveries(self, deliveries: u32) -> Self {
        self.with(|parts| parts.deliveries = Some(deliveries))
    }

    /// It comes from the durable inbox, under this lease.
    #[must_use]
    pub(crate) fn with_stored(self, stored: Stored) -> Self {
        self.with(|parts| parts.stored = Some(stored))
    }

    /// The same message with this id of its sender, or none, and without a destination.
    #[must_use]
    pub(crate) fn without_identity(self, message_id: Option<String>) -> Self {
        self.with(|parts| {
            parts.message_id = message_id;
            parts.destination = None;
            if let Some(stored) = &mut parts.stored {
                stored.was_unrouted = true;
            }
        })
    }

    /// The queue, subject or topic that it was delivered from.
    pub fn topic(&self) -> &str {
        &self.0.topic
    }

    /// Who handles it: its topic unless another destination was given. [`Error::Invalid`] when the
    /// topic cannot be one.
    pub fn destination(&self) -> Result<Destination, Error> {
        match &self.0.destination {
            Some(destination) => Ok(destination.clone()),
            None => Destination::new(self.0.topic.as_str()),
        }
    }

    /// The destination, unless it is its topic.
    pub(crate) fn given_destination(&self) -> Option<&Destination> {
        self.0.destination.as_ref()
    }

    /// The sender's message id.
    pub fn message_id(&self) -> Option<&str> {
        self.0.message_id.as_deref()
    }

    /// The id of the conversation that it belongs to.
    pub fn correlation_id(&self) -> Option<&str> {
        self.0.correlation_id.as_deref()
    }

    /// Messages of one key keep their order, when that is asked for.
    pub fn key(&self) -> Option<&str> {
        self.0.key.as_deref()
    }

    /// What kind of message it is.
    pub fn message_type(&self) -> Option<&str> {
        self.0.message_type.as_deref()
    }

    /// How to take the payload.
    pub fn content_type(&self) -> Option<&str> {
        self.0.content_type.as_deref()
    }

    /// One header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.0.headers.get(name).map(String::as_str)
    }

    /// All headers.
    pub fn headers(&self) -> &BTreeMap<String, String> {
        &self.0.headers
    }

    /// The payload.
    pub fn payload(&self) -> &Bytes {
        &self.0.payload
    }

    /// The payload read as JSON; [`Error::Decode`] when it is not that.
    pub fn json<'m, T: serde::Deserialize<'m>>(&'m self) -> Result<T, Error> {
        serde_json::from_slice(&self.0.payload).map_err(|error| Error::Decode(error.into()))
    }

    /// Where the broker keeps it.
    pub fn coordinates(&self) -> Option<&Coordinates> {
        self.0.coordinates.as_ref()
    }

    /// When it was sent, by the sender's clock.
    pub fn sent_at(&self) -> Option<OffsetDateTime> {
        self.0.sent_at
    }

    /// How often the broker has delivered it, this time included. `None` where the broker does not
    /// count.
    pub fn deliveries(&self) -> Option<u32> {
        self.0.deliveries
    }

    /// Why its last attempt failed, where that is known: from a
    /// [`DurableSource`](crate::durable::DurableSource).
    pub fn last_error(&self) -> Option<&str> {
        self.0.stored.as_ref()?.last_error.as_deref()
    }

    /// The lease that it is held under, when it comes from the durable inbox.
    pub(crate) fn stored(&self) -> Option<&Stored> {
        self.0.stored.as_ref()
    }
}
