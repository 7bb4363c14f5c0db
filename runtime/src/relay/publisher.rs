//! The trait that connects a relay to a broker: [`Publisher`]. It is small: an implementation takes
//! about 30 lines.

use std::{error::Error as StdError, future::Future, time::Duration};

use idem_client::relay::OutgoingMessage;
use tokio::time::timeout;

use crate::error::causes;

/// Publishes effects and waits for the confirmation of the broker.
pub trait Publisher: Send + Sync + 'static {
    /// Publishes one effect and waits for the confirmation of the broker.
    ///
    /// The relay calls this for many effects concurrently, so that confirmations overlap, but for
    /// only one effect of each key at a time. After [`PublishError::Unavailable`] the relay waits
    /// and calls this function again. A publisher that lost its connection reconnects then.
    fn publish(
        &self,
        message: &OutgoingMessage,
    ) -> impl Future<Output = Result<(), PublishError>> + Send;

    /// Connects to the broker without publishing anything. The default implementation returns `Ok`.
    ///
    /// Errors: [`PublishError::Unavailable`] if the broker cannot be reached or rejects the
    /// connection. [`PublishError::TopicUnavailable`] if the broker lacks something that every
    /// effect needs, such as the exchange of the publisher; the error names it.
    fn check(&self) -> impl Future<Output = Result<(), PublishError>> + Send {
        async { Ok(()) }
    }
}

/// Checks the broker within a time limit.
pub(super) async fn check_within(
    limit: Duration,
    publisher: &impl Publisher,
) -> Result<(), PublishError> {
    let check = timeout(limit, publisher.check()).await;
    check.unwrap_or_else(|_| {
        let cause = "the broker does not respond";
        Err(PublishError::Unavailable(cause.into()))
    })
}

/// The error of an effect that was not published.
///
/// The first two variants are failures of the environment: they use up no attempt, and no effect is
/// parked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The broker is unavailable, independently of the effect. The effect is retried without a
    /// limit.
    #[error("the broker is not available: {0}")]
    Unavailable(#[source] Box<dyn StdError + Send + Sync>),
    /// The broker has no place for this topic or does not allow to publish to it: its exchange,
    /// queue or stream does not exist or is full, or a permission is missing. Effects of this topic
    /// are retried without a limit, and effects of other topics continue.
    #[error("the topic is not available: {0}")]
    TopicUnavailable(#[source] Box<dyn StdError + Send + Sync>),
    /// The broker rejected this effect, but may accept it later. The effect is retried up to the
    /// relay's limit of attempts and then parked.
    #[error("the broker rejected the effect: {0}")]
    Rejected(#[source] Box<dyn StdError + Send + Sync>),
    /// No broker will ever accept this effect. The effect is parked at once.
    #[error("the effect cannot be published: {0}")]
    Permanent(#[source] Box<dyn StdError + Send + Sync>),
}

impl PublishError {
    /// Returns the cause of this error, without its kind.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Unavailable(error)
            | Self::TopicUnavailable(error)
            | Self::Rejected(error)
            | Self::Permanent(error) => causes(&**error),
        }
    }
}
