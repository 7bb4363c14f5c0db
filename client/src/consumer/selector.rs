//! Which messages a route takes.

use std::fmt;

use crate::Message;

/// Selects the messages of a [route](crate::Consumer::route).
///
/// ```
/// use idem_client::{Message, Selector};
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
    /// The messages of this [topic](Message::topic): a queue of RabbitMQ, a subject of NATS, a
    /// topic of Kafka.
    pub fn topic(topic: impl Into<String>) -> Self {
        Self(Kind::Topic(topic.into()))
    }

    /// The messages of this [type](Message::message_type).
    pub fn message_type(message_type: impl Into<String>) -> Self {
        Self(Kind::MessageType(message_type.into()))
    }

    /// The messages for which `matches` returns true. A panic is a failure of its message.
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

    /// Whether both take the same messages. Functions are never the same.
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
