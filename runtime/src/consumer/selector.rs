//! Selects the messages of a route.

use std::fmt;

use crate::Message;

/// Selects the messages of a [route](crate::Consumer::route).
///
/// ```
/// use idem_runtime::{Message, consumer::Selector};
///
/// Selector::topic("orders.placed");
/// Selector::message_type("OrderPlaced");
/// Selector::matching(|message: &Message| message.header("region") == Some("eu"));
/// ```
pub struct Selector(Kind);

enum Kind {
    Topic(String),
    MessageType(String),
    Matching(Box<dyn Fn(&Message) -> bool + Send + Sync>),
}

impl Selector {
    /// Selects the messages of this [topic](Message::topic): a RabbitMQ queue, a NATS subject or a
    /// Kafka topic.
    pub fn topic(topic: impl Into<String>) -> Self {
        Self(Kind::Topic(topic.into()))
    }

    /// Selects the messages of this [type](Message::message_type).
    pub fn message_type(message_type: impl Into<String>) -> Self {
        Self(Kind::MessageType(message_type.into()))
    }

    /// Selects the messages for which `matches` returns true. A panic of `matches` counts as a
    /// failure of the message.
    pub fn matching(matches: impl Fn(&Message) -> bool + Send + Sync + 'static) -> Self {
        Self(Kind::Matching(Box::new(matches)))
    }

    pub(super) fn takes(&self, message: &Message) -> bool {
        match &self.0 {
            Kind::Topic(topic) => message.topic() == topic,
            Kind::MessageType(message_type) => message.message_type() == Some(message_type),
            Kind::Matching(matches) => matches(message),
        }
    }

    /// Returns whether both selectors select the same messages. Two functions never count as the
    /// same.
    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Kind::Topic(one), Kind::Topic(other))
            | (Kind::MessageType(one), Kind::MessageType(other)) => one == other,
            _ => false,
        }
    }
}

impl fmt::Debug for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Topic(topic) => write!(f, "topic {topic:?}"),
            Kind::MessageType(message_type) => write!(f, "type {message_type:?}"),
            Kind::Matching(_) => f.write_str("a function"),
        }
    }
}
