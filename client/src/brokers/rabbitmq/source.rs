//! Deliveries of a queue.

use std::{future::Future, sync::Arc, time::Duration};

use futures_util::StreamExt;
use lapin::{
    Channel, Connection, Consumer, message,
    options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions},
    types::FieldTable,
};
use tokio::{
    runtime::Handle,
    time::{Instant, timeout},
};

use super::{
    RabbitMqConfig, RabbitMqSubscription,
    connect::connect,
    properties,
    receipt::{Hold, RabbitMqReceipt},
};
use crate::{
    Closed, Delivery, Message, Receipt, Source, TransportError,
    brokers::withheld::{Withheld, Withhold},
};

/// How long the broker may take for all that is returned. Below what a consumer waits for a close:
/// messages near their limit are kept after it.
const RETURNED_WITHIN: Duration = Duration::from_secs(3);

const CANCELLED: &str = "the broker has cancelled the consumer: the queue is gone, or a message was not settled within the \
    consumer timeout";

/// The messages of one queue of a RabbitMQ.
///
/// [`Retry`](crate::Settlement::Retry) puts a message back into its queue with `basic.reject`,
/// which every quorum queue counts as a failure. With a pause the message waits here, in its place
/// among the prefetched, for at most five minutes, and is put back then. For longer pauses, and to
/// free the place, give the queue a dead-letter exchange that leads to a queue with a time to live
/// and from there back, and reject.
///
/// [`Release`](crate::Settlement::Release) is for a message that did not fail. A quorum queue
/// before RabbitMQ 4.3 counts each return and deletes the message at its delivery limit, so the
/// message stays unacknowledged and this source delivers it again, for at most
/// [`hold_s`](RabbitMqSubscription::hold_s) after the broker delivered it; then it is returned.
/// Other queues do not count a `basic.nack`, so the message is returned with that. The first
/// redelivery shows which queue it is; until then the source assumes that the queue counts.
///
/// A receipt that is dropped returns its message, and [`close`](Source::close) returns all that
/// this source has and that was not delivered. When the connection ends, every quorum queue counts
/// each message that was delivered over it and not settled.
///
/// [`Reject`](crate::Settlement::Reject) gives a message to the queue's dead-letter exchange, when
/// the subscription says that there [is one](RabbitMqSubscription::dead_letter_exchange). Otherwise
/// a [`Consumer`](crate::Consumer) keeps the message in `idem.dead_letter` and acknowledges it;
/// settled by hand, it is an error, and the message comes again.
///
/// A message has the queue as its topic, and as its key the header `idem-key`. [`deliveries`](crate::Message::deliveries) is
/// exact on quorum queues (since 4.3: the failures, and this delivery). Classic queues know no more
/// than that the message came before, and do not count from then on. There are no coordinates.
///
/// It connects at the first call of `next`, and again at the next one after the connection was lost.
pub struct RabbitMqSource {
    config: RabbitMqConfig,
    subscription: RabbitMqSubscription,
    consuming: Option<Consuming>,
}

/// What deliveries are settled on; closed with the last one that holds it.
pub(super) struct Session {
    channel: Channel,
    _connection: Connection,
}

/// A consumer on its channel.
struct Consuming {
    consumer: Consumer,
    session: Arc<Session>,
    withheld: Arc<Withheld<RabbitMqReceipt>>,
    /// A redelivery has shown that the queue does not count a return.
    returns_are_free: bool,
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

    /// Leaves the consumer that has ended; the next one has a connection of its own.
    fn leave(&mut self) {
        let Some(consuming) = self.consuming.take() else { return };
        let ending = consuming.end(self.subscription.clone());
        // Without a runtime the messages come again when the connection is closed.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { drop(ending.await) });
        }
    }
}

impl Drop for RabbitMqSource {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Consuming {
    async fn start(config: &RabbitMqConfig, subscription: &RabbitMqSubscription) -> Result<Self, TransportError> {
        let queue = properties::short(&subscription.queue)?;
        let connection = connect(config, "source").await?;
        let channel = connection.create_channel().await?;
        channel.basic_qos(subscription.prefetch, BasicQosOptions::default()).await?;
        let consumer = channel
            .basic_consume(queue, "".into(), BasicConsumeOptions::default(), FieldTable::default())
            .await?;
        let session = Session {
            channel,
            _connection: connection,
        };
        let withheld = Arc::new(Withheld::default());
        tokio::spawn(Arc::clone(&withheld).expire());
        Ok(Self {
            consumer,
            session: Arc::new(session),
            withheld,
            returns_are_free: false,
        })
    }

    fn receive(&mut self, subscription: &RabbitMqSubscription, mut delivery: message::Delivery) -> (Message, RabbitMqReceipt) {
        let is_near_limit = is_near_limit(subscription, &delivery);
        if let Some(counts_returns) = properties::counts_returns(&delivery) {
            self.returns_are_free = !counts_returns;
        }
        let counts_releases = properties::counts_releases(&delivery);
        let message = properties::incoming(&subscription.queue, &mut delivery);
        let hold = Hold {
            message: message.clone(),
            until: Instant::now() + subscription.hold(),
            withheld: Arc::clone(&self.withheld),
        };
        let receipt = RabbitMqReceipt::new(
            delivery.acker,
            Some(hold).filter(|_| subscription.hold_s > 0 && !self.returns_are_free),
            counts_releases,
            is_near_limit,
            subscription.dead_letter_exchange,
            Arc::clone(&self.session),
        );
        (message, receipt)
    }

    /// Returns what was not delivered. The consumer is cancelled first: the broker would send it
    /// the messages again.
    fn end(mut self, subscription: RabbitMqSubscription) -> impl Future<Output = Closed> + Send + 'static {
        // At once, because the receipts hold what they are withheld in.
        let withheld = self.withheld.close();
        async move {
            let mut closed = Closed::default();
            let ending = async {
                let options = BasicCancelOptions::default();
                let cancelled = self.session.channel.basic_cancel(self.consumer.tag(), options).await;
                for (message, receipt) in withheld {
                    give_back(&mut closed, message, receipt).await;
                }
                if cancelled.is_ok() {
                    while let Some(Ok(delivery)) = self.consumer.next().await {
                        let (message, receipt) = self.receive(&subscription, delivery);
                        give_back(&mut closed, message, receipt).await;
                    }
                }
            };
            if timeout(RETURNED_WITHIN, ending).await.is_err() {
                tracing::debug!("the broker does not take messages back: they come again when the connection ends");
            }
            closed
        }
    }
}

/// Returns a message, unless its queue may delete it then.
async fn give_back(closed: &mut Closed, message: Message, receipt: RabbitMqReceipt) {
    if receipt.is_near_limit() {
        closed.near_limit.push(Delivery::new(message, receipt));
    } else {
        closed.returned += u64::from(receipt.give_back().await);
    }
}

/// Whether a quorum queue of RabbitMQ 4 may delete the message when it is returned: at its delivery
/// limit, unless the queue has a dead-letter exchange. The broker does not tell a consumer what the
/// limit is.
fn is_near_limit(subscription: &RabbitMqSubscription, delivery: &message::Delivery) -> bool {
    let counted = properties::near_limit(delivery).filter(|_| !subscription.dead_letter_exchange);
    if let Some(counted) = counted {
        tracing::warn!(
            queue = subscription.queue,
            counted,
            message_id = delivery.properties.message_id().as_ref().map(|id| id.as_str()),
            "the queue has counted many deliveries of a message: since RabbitMQ 4.0 a quorum queue deletes it after 20, unless \
             the queue has another delivery limit (x-delivery-limit) or a dead-letter exchange"
        );
    }
    counted.is_some()
}

impl Source for RabbitMqSource {
    async fn next(&mut self) -> Result<Option<Delivery>, TransportError> {
        let consuming = match &mut self.consuming {
            Some(consuming) => consuming,
            none => {
                let starting = Consuming::start(&self.config, &self.subscription);
                none.insert(timeout(self.config.timeout(), starting).await??)
            }
        };
        loop {
            // In random order, so that a queue that always has messages does not keep the others
            // waiting.
            let delivered = tokio::select! {
                (message, receipt) = consuming.withheld.next() => return Ok(Some(Delivery::new(message, receipt))),
                delivered = consuming.consumer.next() => delivered,
            };
            let error = match delivered {
                // Its channel has been closed since: the broker delivers it again.
                Some(Ok(delivery)) if !delivery.acker.usable() => continue,
                Some(Ok(delivery)) => {
                    let (message, receipt) = consuming.receive(&self.subscription, delivery);
                    return Ok(Some(Delivery::new(message, receipt)));
                }
                Some(Err(error)) => error.into(),
                None => CANCELLED.into(),
            };
            self.leave();
            return Err(error);
        }
    }

    async fn close(&mut self) -> Closed {
        match self.consuming.take() {
            Some(consuming) => consuming.end(self.subscription.clone()).await,
            None => Closed::default(),
        }
    }
}
