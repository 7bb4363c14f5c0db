//! Deliveries of a queue.

use std::sync::Arc;

use futures_util::StreamExt;
use lapin::{
    Channel, Connection, Consumer,
    options::{BasicConsumeOptions, BasicQosOptions},
    types::FieldTable,
};
use tokio::time::timeout;

use super::{RabbitMqConfig, RabbitMqSubscription, connect::connect, properties, receipt::RabbitMqReceipt};
use crate::{Delivery, Source, TransportError};

/// The messages of one queue of a RabbitMQ.
///
/// [`Retry`](crate::Settlement::Retry) puts a message back into its queue with `basic.reject`, and
/// [`Release`](crate::Settlement::Release) with `basic.nack`. A quorum queue of RabbitMQ 4.3 and
/// later counts the first as a failure, and not the second; earlier versions count both. A receipt
/// that is dropped releases its message. When the connection ends, RabbitMQ counts each message
/// that was delivered over it and not settled.
///
/// Without a pause the message is back in its queue at once. With one it is held here, in its place
/// among the prefetched, for at most five minutes, and put back then. For longer pauses, and to
/// free the place, give the queue a dead-letter exchange that leads to a queue with a time to live
/// and from there back, and reject.
/// [`Reject`](crate::Settlement::Reject) gives a message to the queue's dead-letter exchange, when the subscription says that there
/// [is one](RabbitMqSubscription::dead_letter_exchange). Otherwise a [`Consumer`](crate::Consumer) keeps the message in
/// `idem.dead_letter` and acknowledges it; settled by hand, it is an error, and the message comes again.
///
/// A message has the queue as its topic, and as its key the header `idem-key`. [`deliveries`](crate::Message::deliveries) is
/// exact on quorum queues (since 4.3: the failures, and this delivery). Classic queues know no more
/// than that the message came before, and do not count from then on. There are no coordinates.
///
/// It connects at the first call of `next`, and again at the next one after the connection was lost.
pub struct RabbitMqSource {
    config: RabbitMqConfig,
    subscription: RabbitMqSubscription,
    consuming: Option<(Consumer, Arc<Session>)>,
}

/// What deliveries are settled on; closed with the last one that holds it.
pub(super) struct Session {
    _channel: Channel,
    _connection: Connection,
}

impl RabbitMqSource {
    /// Consumes from this RabbitMQ; does not connect yet.
    pub fn new(config: RabbitMqConfig, subscription: RabbitMqSubscription) -> Self {
        Self {
            config,
            subscription,
            consuming: None,
        }
    }
}

async fn consume(
    config: &RabbitMqConfig,
    subscription: &RabbitMqSubscription,
) -> Result<(Consumer, Arc<Session>), TransportError> {
    let queue = properties::short(&subscription.queue)?;
    let connection = connect(config, "source").await?;
    let channel = connection.create_channel().await?;
    channel.basic_qos(subscription.prefetch, BasicQosOptions::default()).await?;
    let consumer = channel
        .basic_consume(queue, "".into(), BasicConsumeOptions::default(), FieldTable::default())
        .await?;
    let session = Session {
        _channel: channel,
        _connection: connection,
    };
    Ok((consumer, Arc::new(session)))
}

impl Source for RabbitMqSource {
    async fn next(&mut self) -> Result<Option<Delivery>, TransportError> {
        let (consumer, session) = match &mut self.consuming {
            Some(consuming) => consuming,
            none => none.insert(timeout(self.config.timeout(), consume(&self.config, &self.subscription)).await??),
        };
        match consumer.next().await {
            Some(Ok(mut delivery)) => {
                let counts_releases = properties::counts_releases(&delivery);
                let message = properties::incoming(&self.subscription.queue, &mut delivery);
                let has_exchange = self.subscription.dead_letter_exchange;
                let receipt = RabbitMqReceipt::new(delivery.acker, counts_releases, has_exchange, Arc::clone(session));
                Ok(Some(Delivery::new(message, receipt)))
            }
            Some(Err(error)) => {
                self.consuming = None;
                Err(error.into())
            }
            None => {
                self.consuming = None;
                Err("the broker has cancelled the consumer: is the queue still there?".into())
            }
        }
    }
}
