//! Publishes effects to handlers in the same process and database, without a broker.

use std::{collections::HashMap, fmt};

use deadpool_postgres::Pool;
use idem_client::relay::OutgoingMessage;
use serde_json::Value;

use super::{PublishError, Publisher};
use crate::{
    Error, Handled, Idem, Message, Settlement, Tx,
    handler::{ErasedHandler, erase},
    process::caused_by_environment,
};

/// A [`Publisher`] that passes effects to handlers in this process. The topic of an effect is the
/// destination.
///
/// ```
/// # fn local(pool: deadpool_postgres::Pool, rabbit: impl idem_runtime::Publisher) {
/// use idem_runtime::{Idem, relay::{Local, Topics}};
///
/// let local = Local::new(pool, Idem::new())
///     .handle("range.board", |tx, message| async move {
///         tx.execute("UPDATE board SET hits = hits + 1 WHERE player = $1", &[&message.key()])
///             .await?;
///         Ok(vec![])
///     });
/// let topics = Topics::new().topic("range.board", local).otherwise(rabbit);
/// # let _ = topics;
/// # }
/// ```
///
/// The handler's transaction claims the effect by its message id. So the effect is handled once,
/// however often and by whichever relay it is published, and the handler's own effects are recorded
/// in the same transaction. A handler that fails is retried like an effect that a broker rejects.
/// After a terminal error the effect is parked. A handler must finish within the relay's
/// [`publish_timeout`](crate::Relay::publish_timeout).
pub struct Local {
    pool: Pool,
    idem: Idem,
    handlers: HashMap<String, ErasedHandler<Tx>>,
}

impl Local {
    /// Creates a publisher without handlers. The handlers use connections of `pool` and the
    /// policies of `idem`.
    pub fn new(pool: Pool, idem: Idem) -> Self {
        Self {
            pool,
            idem,
            handlers: HashMap::new(),
        }
    }

    /// Passes the effects of this topic to `handler`, as messages for the destination of the same
    /// name.
    #[must_use]
    pub fn handle<F, Fut>(mut self, topic: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Tx, Message) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        self.handlers.insert(topic.into(), erase(handler));
        self
    }
}

impl Publisher for Local {
    async fn publish(&self, message: &OutgoingMessage) -> Result<(), PublishError> {
        let Some(handler) = self.handlers.get(&message.topic) else {
            return Err(PublishError::Permanent(
                format!(
                    "no handler is set up for the destination \"{}\"",
                    message.topic
                )
                .into(),
            ));
        };
        let processed = self
            .idem
            .process(&self.pool, &as_incoming(message), &**handler)
            .await;
        let (settlement, error) = match processed {
            Ok(processed) => (processed.settlement(), format!("{processed:?}").into()),
            // When the environment of a handler fails, only its own topic is affected. When the
            // database fails, all topics are affected.
            Err(error @ Error::Handler(_)) if caused_by_environment(&error) => {
                return Err(PublishError::TopicUnavailable(error.into()));
            }
            Err(error) if caused_by_environment(&error) => {
                return Err(PublishError::Unavailable(error.into()));
            }
            Err(error) => (error.settlement(), error.into()),
        };
        match settlement {
            Settlement::Acknowledge => Ok(()),
            Settlement::Retry { .. } | Settlement::Release { .. } => {
                Err(PublishError::Rejected(error))
            }
            Settlement::Reject { reason } => Err(PublishError::Permanent(reason.into())),
        }
    }
}

/// Converts an effect to the message that its handler receives.
fn as_incoming(effect: &OutgoingMessage) -> Message {
    let mut message = Message::new(effect.topic.as_str(), effect.payload.clone())
        .with_message_id(effect.message_id.to_string());
    for (name, value) in &effect.headers {
        let value = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        message = message.with_header(name, value);
    }
    if let Some(traceparent) = &effect.traceparent {
        message = message.with_header("traceparent", traceparent);
    }
    if let Some(key) = &effect.key {
        message = message.with_key(key);
    }
    if let Some(message_type) = &effect.message_type {
        message = message.with_type(message_type);
    }
    if let Some(content_type) = &effect.content_type {
        message = message.with_content_type(content_type);
    }
    message.with_sent_at(effect.recorded_at)
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local")
            .field("handlers", &self.handlers.keys())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    /// The message of a handler has the payload, key, type, headers and trace context of the
    /// effect.
    #[test]
    fn handler_gets_all_properties_of_the_effect() {
        let mut effect = OutgoingMessage::new(Uuid::from_u128(7), "range.board", "[1]");
        effect.key = Some("k".into());
        effect.message_type = Some("T".into());
        effect.content_type = Some("application/json".into());
        effect.headers.insert("text".into(), json!("plain"));
        effect.headers.insert("number".into(), json!(7));
        effect.traceparent = Some("00-1-2-01".into());
        let message = as_incoming(&effect);
        assert_eq!(message.destination().unwrap().as_str(), "range.board");
        assert_eq!(
            message.message_id(),
            Some("00000000-0000-0000-0000-000000000007")
        );
        assert_eq!(message.json::<[u8; 1]>().unwrap(), [1]);
        assert_eq!(
            (message.key(), message.message_type()),
            (Some("k"), Some("T"))
        );
        assert_eq!(message.content_type(), Some("application/json"));
        assert_eq!(message.header("text"), Some("plain"));
        assert_eq!(message.header("number"), Some("7"));
        assert_eq!(message.header("traceparent"), Some("00-1-2-01"));
        assert_eq!(message.sent_at(), Some(effect.recorded_at));
    }
}
