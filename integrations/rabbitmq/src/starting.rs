//! Starts a consumer in several steps.

use std::time::Duration;

use idem_runtime::transport::TransportError;
use tokio::{task::JoinHandle, time::timeout};

use super::{
    RabbitMqConfig, RabbitMqSubscription, consuming::Consuming, properties, session::Session,
};

/// The current step of the start of a consumer. The steps run in tasks, so that a source that
/// delivers a withheld message during the start does not have to repeat the start.
#[derive(Default)]
pub(super) enum Starting {
    /// No consumer is being started.
    #[default]
    No,
    /// A connection and a channel are being opened. This can be aborted.
    Opening(JoinHandle<Result<Session, TransportError>>),
    /// The consumer is requested, and the broker may have sent messages. The queue counts these
    /// messages when the connection ends, and a quorum queue may delete a message at its delivery
    /// limit.
    Asked(JoinHandle<Result<Consuming, TransportError>>),
}

impl Starting {
    /// Starts a consumer, and waits for it. Cancel safe: when this is used again, it continues the
    /// start.
    pub(super) async fn consumer(
        &mut self,
        config: &RabbitMqConfig,
        subscription: &RabbitMqSubscription,
    ) -> Result<Consuming, TransportError> {
        let patience = config.timeout();
        let queue = properties::short(&subscription.queue)?;
        loop {
            match self {
                Self::No => {
                    let (config, subscription) = (config.clone(), subscription.clone());
                    let opening = async move {
                        timeout(patience, Session::open(&config, &subscription)).await?
                    };
                    *self = Self::Opening(tokio::spawn(opening));
                }
                Self::Opening(opening) => {
                    let opened = opening.await;
                    *self = Self::No;
                    let asking = Consuming::start(opened??, queue.clone());
                    *self = Self::Asked(tokio::spawn(
                        async move { timeout(patience, asking).await? },
                    ));
                }
                Self::Asked(asking) => {
                    let started = asking.await;
                    *self = Self::No;
                    return started?;
                }
            }
        }
    }

    /// Returns the requested consumer if the broker confirms it within this time. Aborts a start
    /// that has not requested a consumer.
    pub(super) async fn finish(self, patience: Duration) -> Option<Consuming> {
        match self {
            Self::No => None,
            Self::Opening(opening) => {
                opening.abort();
                None
            }
            Self::Asked(mut asking) => match timeout(patience, &mut asking).await {
                Ok(started) => started.ok()?.ok(),
                Err(_) => {
                    tracing::warn!(
                        "the broker did not confirm a consumer in time: it redelivers the messages \
                         that it has sent, and counts these deliveries"
                    );
                    asking.abort();
                    None
                }
            },
        }
    }
}
