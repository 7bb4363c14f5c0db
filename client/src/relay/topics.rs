//! Which effects go where.

use std::{collections::HashMap, fmt};

use super::{OutgoingMessage, PublishError, Publisher, erased::ErasedPublisher};

/// Routes effects to publishers by their topic. It is a [`Publisher`] itself.
///
/// ```
/// # fn route(local: impl idem_client::Publisher, rabbit: impl idem_client::Publisher, nats: impl idem_client::Publisher) {
/// use idem_client::Topics;
///
/// let topics = Topics::new()
///     .topic("range.board", local)
///     .prefix("orders.", rabbit)
///     .otherwise(nats);
/// # let _ = topics;
/// # }
/// ```
///
/// The more exact wins: a whole topic before a prefix, a longer prefix before a shorter one. An
/// effect that has no way to go is parked. A partition waits for a broker that is away, also with
/// its effects for others; of a topic that is not available its effects wait.
#[derive(Default)]
#[must_use = "give it to a Relay"]
pub struct Topics {
    exact: HashMap<String, Box<dyn ErasedPublisher>>,
    /// The longest first.
    prefixes: Vec<(String, Box<dyn ErasedPublisher>)>,
    otherwise: Option<Box<dyn ErasedPublisher>>,
}

impl Topics {
    /// No way for anything.
    pub fn new() -> Self {
        Self::default()
    }

    /// Effects of this topic go here.
    pub fn topic(mut self, topic: impl Into<String>, publisher: impl Publisher) -> Self {
        self.exact.insert(topic.into(), Box::new(publisher));
        self
    }

    /// Effects whose topic begins like this go here. A publisher in an [`Arc`](std::sync::Arc) can
    /// have several ways to it.
    pub fn prefix(mut self, prefix: impl Into<String>, publisher: impl Publisher) -> Self {
        let prefix = prefix.into();
        self.prefixes.retain(|(known, _)| *known != prefix);
        self.prefixes.push((prefix, Box::new(publisher)));
        self.prefixes
            .sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        self
    }

    /// All other effects go here.
    pub fn otherwise(mut self, publisher: impl Publisher) -> Self {
        self.otherwise = Some(Box::new(publisher));
        self
    }

    fn way_of(&self, topic: &str) -> Option<&dyn ErasedPublisher> {
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
        match self.way_of(&message.topic) {
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
    use std::sync::{Arc, Mutex};

    use uuid::Uuid;

    use super::*;

    /// Notes what comes along a way.
    struct Way(&'static str, Arc<Mutex<Vec<(String, &'static str)>>>);

    impl Publisher for Way {
        async fn publish(&self, message: &OutgoingMessage) -> Result<(), PublishError> {
            self.1.lock().unwrap().push((message.topic.clone(), self.0));
            Ok(())
        }
    }

    #[tokio::test]
    async fn the_more_exact_way_wins_and_what_has_none_can_never_be_published() {
        let seen = Arc::default();
        let way = |name| Way(name, Arc::clone(&seen));
        let some = Topics::new()
            .prefix("orders.", way("shorter"))
            .prefix("orders.paid.", way("longer"))
            .topic("orders.paid.late", way("exact"));
        let send = async |topics: &Topics, topic: &str| {
            Publisher::publish(topics, &OutgoingMessage::new(Uuid::nil(), topic, "")).await
        };
        for topic in ["orders.new", "orders.paid.now", "orders.paid.late"] {
            send(&some, topic).await.unwrap();
        }
        let error = send(&some, "others").await.unwrap_err();
        assert!(matches!(error, PublishError::Permanent(_)), "{error:?}");
        assert!(error.to_string().contains("\"others\""), "{error}");
        send(&some.otherwise(way("otherwise")), "others")
            .await
            .unwrap();
        let seen: Vec<_> = seen.lock().unwrap().iter().map(|(_, way)| *way).collect();
        assert_eq!(seen, ["shorter", "longer", "exact", "otherwise"]);
    }
}
