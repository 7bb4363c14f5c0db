//! The way to a consumer.

use std::time::Duration;

use tokio::{task::JoinHandle, time::timeout};

use super::{
    RabbitMqConfig, RabbitMqSubscription,
    consuming::{Consuming, Session},
    properties,
};
use crate::TransportError;

/// A consumer that is being started, in tasks: a source that delivers withheld messages meanwhile
/// does not begin anew.
#[derive(Default)]
pub(super) enum Starting {
    /// Nothing is being started.
    #[default]
    No,
    /// A connection that consumes nothing yet: it can be given up.
    Opening(JoinHandle<Result<Session, TransportError>>),
    /// The broker was asked to send messages. It counts those that it has sent when their
    /// connection ends, and a quorum queue may delete one at its delivery limit.
    Asked(JoinHandle<Result<Consuming, TransportError>>),
}

impl Starting {
    /// Waits for a consumer. Cancel safe: the next call goes on with it.
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

    /// The consumer that the broker was asked for, if it confirms that within this time.
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
                        "the broker does not confirm a consumer: what it has sent comes again, and is counted"
                    );
                    asking.abort();
                    None
                }
            },
        }
    }
}
