//! An incoming message of any broker.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use idem_client::{Destination, redacted::Payload};
use time::OffsetDateTime;

use crate::{Error, lease::NotedLease, stored::Stored};

/// A message as a consumer receives it. Cheap to clone, because the payload is shared.
///
/// ```
/// use idem_runtime::Message;
///
/// let message = Message::new("orders.reserve-inventory", r#"{"order": 4711}"#)
///     .with_message_id("order-4711")
///     .with_key("customer-7");
/// assert_eq!(message.destination()?.as_str(), "orders.reserve-inventory");
/// # Ok::<(), idem_runtime::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Message(Arc<Parts>);

#[derive(Clone, Debug, Default)]
struct Parts {
    topic: String,
    destination: Option<Destination>,
    message_id: Option<String>,
    correlation_id: Option<String>,
    key: Option<String>,
    message_type: Option<String>,
    content_type: Option<String>,
    headers: BTreeMap<String, String>,
    payload: Payload,
    coordinates: Option<Coordinates>,
    sent_at: Option<OffsetDateTime>,
    deliveries: Option<u32>,
    stored: Option<Stored>,
    noted_lease: Option<NotedLease>,
}

/// The position of a message at its broker, which is the same at every delivery.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Coordinates {
    /// The topic, stream or queue.
    pub topic: String,
    /// The partition; 0 if the broker has none.
    pub partition: i32,
    /// The position in the partition.
    pub offset: i64,
}

impl Coordinates {
    /// Creates a position.
    ///
    /// - `topic`: the topic, stream or queue.
    /// - `partition`: the partition; 0 if the broker has none.
    /// - `offset`: the position in the partition.
    pub fn new(topic: impl Into<String>, partition: i32, offset: i64) -> Self {
        Self {
            topic: topic.into(),
            partition,
            offset,
        }
    }
}

impl Message {
    /// Creates a message that was delivered from a topic: the queue, subject or topic that the
    /// consumer reads.
    pub fn new(topic: impl Into<String>, payload: impl Into<Payload>) -> Self {
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

    /// Returns the number of bytes of the payload and of the names and values of the headers.
    pub(crate) fn size(&self) -> usize {
        let headers = self
            .0
            .headers
            .iter()
            .map(|(name, value)| name.len() + value.len());
        self.0.payload.len() + headers.sum::<usize>()
    }

    /// Sets the destination that processes the message. Without it the destination is the topic.
    #[must_use]
    pub fn with_destination(self, destination: Destination) -> Self {
        self.with(|parts| parts.destination = Some(destination))
    }

    /// Sets the sender's message id.
    #[must_use]
    pub fn with_message_id(self, id: impl Into<String>) -> Self {
        self.with(|parts| parts.message_id = Some(id.into()))
    }

    /// Sets the correlation id: the id of the conversation that the message belongs to.
    #[must_use]
    pub fn with_correlation_id(self, id: impl Into<String>) -> Self {
        self.with(|parts| parts.correlation_id = Some(id.into()))
    }

    /// Sets the key. Messages with the same key keep their order if ordering by key is enabled.
    #[must_use]
    pub fn with_key(self, key: impl Into<String>) -> Self {
        self.with(|parts| parts.key = Some(key.into()))
    }

    /// Sets the type of the message.
    #[must_use]
    pub fn with_type(self, message_type: impl Into<String>) -> Self {
        self.with(|parts| parts.message_type = Some(message_type.into()))
    }

    /// Sets the content type of the payload.
    #[must_use]
    pub fn with_content_type(self, content_type: impl Into<String>) -> Self {
        self.with(|parts| parts.content_type = Some(content_type.into()))
    }

    /// Adds a header. Replaces an earlier header with the same name.
    #[must_use]
    pub fn with_header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.with(|parts| {
            parts.headers.insert(name.into(), value.into());
        })
    }

    /// Sets the position of the message at the broker.
    #[must_use]
    pub fn with_coordinates(self, coordinates: Coordinates) -> Self {
        self.with(|parts| parts.coordinates = Some(coordinates))
    }

    /// Sets the time at which the message was sent, by the sender's clock.
    #[must_use]
    pub fn with_sent_at(self, sent_at: OffsetDateTime) -> Self {
        self.with(|parts| parts.sent_at = Some(sent_at))
    }

    /// Sets how often the broker has delivered the message, including this delivery.
    #[must_use]
    pub fn with_deliveries(self, deliveries: u32) -> Self {
        self.with(|parts| parts.deliveries = Some(deliveries))
    }

    /// Sets the lease under which the durable inbox delivered the message.
    #[must_use]
    pub(crate) fn with_stored(self, stored: Stored) -> Self {
        self.with(|parts| parts.stored = Some(stored))
    }

    /// Sets where an attempt of this message notes its lease.
    #[must_use]
    pub(crate) fn with_noted_lease(self, noted: NotedLease) -> Self {
        self.with(|parts| parts.noted_lease = Some(noted))
    }

    /// Returns the message as the replacement of a delivered message: with the place where an
    /// attempt notes its lease, and with the number of deliveries unless it has its own. With the
    /// same destination it also has the id and the lease of the inbox. The id of the inbox is
    /// unique only within that destination.
    #[must_use]
    pub(crate) fn in_place_of(self, delivered: &Self) -> Self {
        let is_same = self.destination_name() == delivered.destination_name();
        self.with(|parts| {
            parts.stored = delivered.0.stored.clone().filter(|_| is_same);
            parts.noted_lease.clone_from(&delivered.0.noted_lease);
            parts.deliveries = parts.deliveries.or(delivered.0.deliveries);
        })
    }

    fn destination_name(&self) -> &str {
        let given = self.0.destination.as_ref();
        given.map_or(&self.0.topic, Destination::as_str)
    }

    /// Returns the message without a destination, and with `message_id` as the message id of its
    /// sender.
    #[must_use]
    pub(crate) fn without_identity(self, message_id: Option<String>) -> Self {
        self.with(|parts| {
            parts.message_id = message_id;
            parts.destination = None;
        })
    }

    /// Returns the queue, subject or topic that the message was delivered from.
    pub fn topic(&self) -> &str {
        &self.0.topic
    }

    /// Returns the destination that processes the message: its topic, unless another destination
    /// was given.
    ///
    /// Fails with [`Error::Invalid`] if the topic is not a valid destination.
    pub fn destination(&self) -> Result<Destination, Error> {
        match &self.0.destination {
            Some(destination) => Ok(destination.clone()),
            None => Ok(Destination::new(self.0.topic.as_str())?),
        }
    }

    /// Returns the destination that was given; `None` if the destination is the topic.
    pub(crate) fn given_destination(&self) -> Option<&Destination> {
        self.0.destination.as_ref()
    }

    /// Returns the sender's message id.
    pub fn message_id(&self) -> Option<&str> {
        self.0.message_id.as_deref()
    }

    /// Returns the correlation id: the id of the conversation that the message belongs to.
    pub fn correlation_id(&self) -> Option<&str> {
        self.0.correlation_id.as_deref()
    }

    /// Returns the key. Messages with the same key keep their order if ordering by key is enabled.
    pub fn key(&self) -> Option<&str> {
        self.0.key.as_deref()
    }

    /// Returns the type of the message.
    pub fn message_type(&self) -> Option<&str> {
        self.0.message_type.as_deref()
    }

    /// Returns the content type of the payload.
    pub fn content_type(&self) -> Option<&str> {
        self.0.content_type.as_deref()
    }

    /// Returns the value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.0.headers.get(name).map(String::as_str)
    }

    /// Returns all headers.
    pub fn headers(&self) -> &BTreeMap<String, String> {
        &self.0.headers
    }

    /// Returns the payload.
    pub fn payload(&self) -> &Bytes {
        &self.0.payload.0
    }

    /// Deserializes the payload as JSON.
    ///
    /// Fails with [`Error::Decode`] if the payload is not JSON of this type.
    pub fn json<'m, T: serde::Deserialize<'m>>(&'m self) -> Result<T, Error> {
        serde_json::from_slice(&self.0.payload).map_err(|error| Error::Decode(error.into()))
    }

    /// Returns the position of the message at the broker.
    pub fn coordinates(&self) -> Option<&Coordinates> {
        self.0.coordinates.as_ref()
    }

    /// Returns the time at which the message was sent, by the sender's clock.
    pub fn sent_at(&self) -> Option<OffsetDateTime> {
        self.0.sent_at
    }

    /// Returns how often the broker has delivered the message, including this delivery.
    ///
    /// `None` if the broker does not count deliveries.
    pub fn deliveries(&self) -> Option<u32> {
        self.0.deliveries
    }

    /// Returns the error of the last attempt. Only messages of a
    /// [`DurableSource`](crate::inbox::DurableSource) can have such an error.
    pub fn last_error(&self) -> Option<&str> {
        self.0.stored.as_ref()?.held.last_error()
    }

    /// Returns the lease of a message that comes from the durable inbox.
    pub(crate) fn stored(&self) -> Option<&Stored> {
        self.0.stored.as_ref()
    }

    pub(crate) fn noted_lease(&self) -> Option<&NotedLease> {
        self.0.noted_lease.as_ref()
    }
}
