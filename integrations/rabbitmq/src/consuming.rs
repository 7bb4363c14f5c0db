//! Consumes a queue with a consumer on its own channel.

use std::sync::Arc;

use futures_util::StreamExt;
use idem_runtime::{
    Message,
    transport::{TransportError, withheld::Withheld},
};
use lapin::{
    Consumer, ErrorKind, message,
    options::{BasicCancelOptions, BasicConsumeOptions},
    protocol::{AMQPErrorKind, AMQPSoftError},
    types::{AMQPValue, FieldTable, ShortString},
};
use tokio::time::{Instant, timeout_at};

use super::{
    RabbitMqSubscription, properties,
    receipt::{Hold, RabbitMqReceipt},
    session::Session,
};

const CANCELLED: &str = "the broker has cancelled the consumer: the queue was deleted, or a \
    message was not settled within the consumer timeout";

const PRECONDITION_FAILED: AMQPErrorKind = AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED);

const NO_STREAMS: &str = "a stream, which has the x-queue-type \"stream\", cannot be a source: it \
    keeps neither acknowledgements nor the place of a consumer";

/// A consumer and its channel.
pub(super) struct Consuming {
    consumer: Consumer,
    session: Arc<Session>,
    /// Whether a redelivery has shown that the queue does not count returns.
    returns_are_free: bool,
}

impl Consuming {
    /// Starts a consumer of this queue. The broker may send messages before it confirms the
    /// consumer.
    pub(super) async fn start(
        session: Session,
        queue: ShortString,
    ) -> Result<Self, TransportError> {
        let options = BasicConsumeOptions::default();
        // This is the default priority. Of all queue types, only a stream rejects the argument.
        let mut arguments = FieldTable::default();
        arguments.insert("x-priority".into(), AMQPValue::LongInt(0));
        let consumer = session
            .channel
            .basic_consume(queue.clone(), "".into(), options, arguments)
            .await
            .map_err(|error| match error.kind() {
                ErrorKind::ProtocolError(reply) if *reply.kind() == PRECONDITION_FAILED => {
                    format!("cannot consume the queue \"{queue}\" ({NO_STREAMS}): {error}").into()
                }
                _ => TransportError::from(error),
            })?;
        Ok(Self {
            consumer,
            session: Arc::new(session),
            returns_are_free: false,
        })
    }

    /// Waits for the next message of the broker. Fails if the channel or the connection has ended.
    /// Cancel safe.
    pub(super) async fn next(&mut self) -> Result<message::Delivery, TransportError> {
        match self.consumer.next().await {
            Some(delivery) => Ok(delivery?),
            None => Err(CANCELLED.into()),
        }
    }

    /// Returns the message of a delivery, and its receipt.
    pub(super) fn receive(
        &mut self,
        subscription: &RabbitMqSubscription,
        withheld: &Arc<Withheld<RabbitMqReceipt>>,
        mut delivery: message::Delivery,
    ) -> (Message, RabbitMqReceipt) {
        let is_near_limit = is_near_limit(subscription, &delivery);
        if let Some(counts_returns) = properties::counts_returns(&delivery) {
            self.returns_are_free = !counts_returns;
        }
        let counts_releases = properties::counts_releases(&delivery);
        let message = properties::incoming(&subscription.queue, &mut delivery);
        let hold = Hold {
            message: message.clone(),
            until: Instant::now() + subscription.hold(),
            withheld: Arc::clone(withheld),
        };
        let is_withheld = is_near_limit || subscription.hold_s > 0 && !self.returns_are_free;
        let receipt = RabbitMqReceipt {
            acker: Some(delivery.acker),
            hold: is_withheld.then_some(hold),
            counts_releases,
            returns_are_free: self.returns_are_free,
            is_near_limit,
            has_dead_letter_exchange: subscription.dead_letter_exchange,
            session: Arc::clone(&self.session),
        };
        (message, receipt)
    }

    /// Cancels the consumer, so that the broker does not send returned messages to it. Returns the
    /// messages that the broker sent before the cancellation, even if the broker does not reply.
    pub(super) async fn cancel(
        mut self,
        subscription: &RabbitMqSubscription,
        withheld: &Arc<Withheld<RabbitMqReceipt>>,
        until: Instant,
    ) -> Vec<(Message, RabbitMqReceipt)> {
        let options = BasicCancelOptions::default();
        let cancelling = self
            .session
            .channel
            .basic_cancel(self.consumer.tag(), options);
        if !matches!(timeout_at(until, cancelling).await, Ok(Ok(()))) {
            tracing::debug!(
                "the broker did not cancel the consumer in time: it redelivers the messages that \
                 it has sent when the connection ends"
            );
        }
        let mut ahead = Vec::new();
        // Even after `until`, the loop takes the messages that have already arrived.
        while let Ok(Some(Ok(delivery))) = timeout_at(until, self.consumer.next()).await {
            ahead.push(self.receive(subscription, withheld, delivery));
        }
        ahead
    }
}

/// Returns whether a quorum queue of RabbitMQ 4 may delete the message when it is returned. This
/// can happen near the delivery limit, unless the queue has a dead-letter exchange. A consumer
/// cannot read the limit from the broker.
fn is_near_limit(subscription: &RabbitMqSubscription, delivery: &message::Delivery) -> bool {
    let counted = properties::near_limit(delivery).filter(|_| !subscription.dead_letter_exchange);
    if let Some(counted) = counted {
        tracing::warn!(
            queue = subscription.queue,
            counted,
            message_id = delivery
                .properties
                .message_id()
                .as_ref()
                .map(|id| id.as_str()),
            "the queue has counted many deliveries of a message: since RabbitMQ 4.0 a quorum queue \
             deletes it after 20, unless the queue has another delivery limit (x-delivery-limit) \
             or a dead-letter exchange"
        );
    }
    counted.is_some()
}
