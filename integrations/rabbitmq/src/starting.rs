//! Starts a consumer of RabbitMQ (`basic.consume`) in several steps.

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
    /// A connection and a channel are being opened. The task can be aborted.
    Opening(JoinHandle<Result<Session, TransportError>>),
    /// The consumer is requested. Do not abort this task: the broker may have sent messages, and a
    /// quorum queue counts a delivery of each when the connection ends.
    Requested(JoinHandle<Result<Consuming, TransportError>>),
}

impl Starting {
    /// Starts a consumer, and waits for it. Cancel safe: the next call continues the start.
    pub(super) async fn consumer(
        &mut self,
        config: &RabbitMqConfig,
        subscription: &RabbitMqSubscription,
    ) -> Result<Consuming, TransportError> {
        let limit = config.timeout();
        let queue = properties::short(&subscription.queue)?;
        loop {
            match self {
                Self::No => {
                    let (config, subscription) = (config.clone(), subscription.clone());
                    let opening =
                        async move { timeout(limit, Session::open(&config, &subscription)).await? };
                    *self = Self::Opening(tokio::spawn(opening));
                }
                Self::Opening(opening) => {
                    let opened = opening.await;
                    *self = Self::No;
                    let requesting = Consuming::start(opened??, queue.clone());
                    *self =
                        Self::Requested(tokio::spawn(
                            async move { timeout(limit, requesting).await? },
                        ));
                }
                Self::Requested(requesting) => {
                    let started = requesting.await;
                    *self = Self::No;
                    return started?;
                }
            }
        }
    }

    /// Returns the requested consumer if the broker confirms it within this time. Aborts a start
    /// that has not requested a consumer.
    pub(super) async fn finish(self, limit: Duration) -> Option<Consuming> {
        match self {
            Self::No => None,
            Self::Opening(opening) => {
                opening.abort();
                None
            }
            Self::Requested(mut requesting) => match timeout(limit, &mut requesting).await {
                Ok(started) => started.ok()?.ok(),
                Err(_) => {
                    tracing::warn!(
                        "the broker did not confirm a consumer in time: it redelivers the messages \
                         that it has sent, and counts these deliveries"
                    );
                    requesting.abort();
                    None
                }
            },
        }
    }
}
