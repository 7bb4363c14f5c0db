//! Selects a publisher for each effect by its topic.

use std::{collections::HashMap, fmt, sync::Arc};

use futures_util::{FutureExt, future::BoxFuture};
use idem_client::relay::OutgoingMessage;

use super::{PublishError, Publisher};

/// A publisher as a trait object.
trait ErasedPublisher: Send + Sync {
    fn publish<'a>(
        &'a self,
        message: &'a OutgoingMessage,
    ) -> BoxFuture<'a, Result<(), PublishError>>;

    fn check(&self) -> BoxFuture<'_, Result<(), PublishError>>;
}

impl<P: Publisher> ErasedPublisher for P {
    fn publish<'a>(
        &'a self,
        message: &'a OutgoingMessage,
    ) -> BoxFuture<'a, Result<(), PublishError>> {
        Publisher::publish(self, message).boxed()
    }

    fn check(&self) -> BoxFuture<'_, Result<(), PublishError>> {
        Publisher::check(self).boxed()
    }
}

impl<P: Publisher> Publisher for Arc<P> {
    async fn publish(&self, message: &OutgoingMessage) -> Result<(), PublishError> {
        Publisher::publish(&**self, message).await
    }

    async fn check(&self) -> Result<(), PublishError> {
        Publisher::check(&**self).await
    }
}

/// A [`Publisher`] that passes each effect to another publisher by its topic.
///
/// ```
/// # fn route(
/// #     audit: impl idem_runtime::Publisher, rabbit: impl idem_runtime::Publisher,
/// #     nats: impl idem_runtime::Publisher,
/// # ) {
/// use idem_runtime::relay::Topics;
///
/// let topics = Topics::new()
///     .topic("orders.audit", audit)
///     .prefix("orders.", rabbit)
///     .otherwise(nats);
/// # let _ = topics;
/// # }
/// ```
///
/// The most specific rule applies: a whole topic before a prefix, and a longer prefix before a
/// shorter prefix. An effect for which no rule applies is parked. While one broker is unavailable,
/// all effects of a partition wait, including effects for other brokers. While a topic is
/// unavailable, only the effects of that topic wait.
#[derive(Default)]
#[must_use = "topics do nothing until they are passed to a `Relay`"]
pub struct Topics {
    exact: HashMap<String, Box<dyn ErasedPublisher>>,
    /// The longest prefix first.
    prefixes: Vec<(String, Box<dyn ErasedPublisher>)>,
    otherwise: Option<Box<dyn ErasedPublisher>>,
}

impl Topics {
    /// Creates a router without publishers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Publishes the effects of this topic with `publisher`.
    pub fn topic(mut self, topic: impl Into<String>, publisher: impl Publisher) -> Self {
        self.exact.insert(topic.into(), Box::new(publisher));
        self
    }

    /// Publishes the effects of all topics with this prefix with `publisher`. To use one publisher
    /// for several rules, wrap it in an [`Arc`].
    pub fn prefix(mut self, prefix: impl Into<String>, publisher: impl Publisher) -> Self {
        let prefix = prefix.into();
        self.prefixes.retain(|(known, _)| *known != prefix);
        self.prefixes.push((prefix, Box::new(publisher)));
        self.prefixes
            .sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        self
    }

    /// Publishes all other effects with `publisher`.
    pub fn otherwise(mut self, publisher: impl Publisher) -> Self {
        self.otherwise = Some(Box::new(publisher));
        self
    }

    fn publisher_of(&self, topic: &str) -> Option<&dyn ErasedPublisher> {
        let by_prefix = || {
            self.prefixes
                .iter()
                .find(|(prefix, _)| topic.starts_with(prefix))
                .map(|(_, to)| to)
        };
        self.exact
            .get(topic)
            .or_else(by_prefix)
            .or(self.otherwise.as_ref())
            .map(Box::as_ref)
    }
}

impl Publisher for Topics {
    async fn publish(&self, message: &OutgoingMessage) -> Result<(), PublishError> {
        match self.publisher_of(&message.topic) {
            Some(publisher) => publisher.publish(message).await,
            None => Err(PublishError::Permanent(
                format!("no publisher is set up for the topic \"{}\"", message.topic).into(),
            )),
        }
    }

    async fn check(&self) -> Result<(), PublishError> {
        let by_prefix = self.prefixes.iter().map(|(_, to)| to);
        for publisher in self.exact.values().chain(by_prefix).chain(&self.otherwise) {
            publisher.check().await?;
        }
        Ok(())
    }
}

impl fmt::Debug for Topics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefixes: Vec<_> = self.prefixes.iter().map(|(prefix, _)| prefix).collect();
        f.debug_struct("Topics")
            .field("exact", &self.exact.keys())
            .field("prefixes", &prefixes)
            .field("otherwise", &self.otherwise.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use uuid::Uuid;

    use super::*;

    /// A publisher that records its name for each message that it publishes.
    struct Recorder(&'static str, Arc<Mutex<Vec<(String, &'static str)>>>);

    impl Publisher for Recorder {
        async fn publish(&self, message: &OutgoingMessage) -> Result<(), PublishError> {
            self.1.lock().unwrap().push((message.topic.clone(), self.0));
            Ok(())
        }
    }

    /// The most specific rule selects the publisher. An effect without a publisher fails
    /// permanently.
    #[tokio::test]
    async fn most_specific_publisher_wins_and_none_is_permanent() {
        let seen = Arc::default();
        let publisher = |name| Recorder(name, Arc::clone(&seen));
        let some = Topics::new()
            .prefix("orders.", publisher("shorter"))
            .prefix("orders.paid.", publisher("longer"))
            .topic("orders.paid.late", publisher("exact"));
        let send = async |topics: &Topics, topic: &str| {
            Publisher::publish(topics, &OutgoingMessage::new(Uuid::nil(), topic, "")).await
        };
        for topic in ["orders.new", "orders.paid.now", "orders.paid.late"] {
            send(&some, topic).await.unwrap();
        }
        let error = send(&some, "others").await.unwrap_err();
        assert!(matches!(error, PublishError::Permanent(_)), "{error:?}");
        assert!(error.to_string().contains("\"others\""), "{error}");
        send(&some.otherwise(publisher("otherwise")), "others")
            .await
            .unwrap();
        let seen: Vec<_> = seen
            .lock()
            .unwrap()
            .iter()
            .map(|(_, publisher)| *publisher)
            .collect();
        assert_eq!(seen, ["shorter", "longer", "exact", "otherwise"]);
    }
}
