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
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};

use super::{
    RabbitMqConfig, RabbitMqSubscription,
    connect::connect,
    properties,
    receipt::{Hold, RabbitMqReceipt},
};
use crate::{
    Closed, Delivery, Message, Source, TransportError,
    brokers::withheld::{Withheld, Withhold},
};

/// How long the broker may take for all that is returned. A consumer waits longer than this for the
/// messages near their limit, because it keeps them after that.
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
/// A message that the queue has counted 15 to 20 times may be deleted by RabbitMQ 4 when it is
/// counted again. So it is not returned where that counts: when it was released, when its receipt
/// was dropped and after the end of its connection this source delivers it again, and at a close a
/// [`Consumer`](crate::Consumer) keeps it. With a dead-letter exchange it is returned like any other.
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
    /// An attempt to consume. It is never dropped: the broker may have sent messages to it already.
    starting: Option<JoinHandle<Result<Consuming, TransportError>>>,
    consuming: Option<Consuming>,
    /// Also of consumers that have ended: a message can be settled while its channel is open.
    withheld: Arc<Withheld<RabbitMqReceipt>>,
    /// Returns withheld messages when their time is over.
    expiring: Option<JoinHandle<()>>,
    /// Where the source works; none before it does.
    runtime: Option<Handle>,
}

/// What deliveries are settled on; closed with the last one that holds it.
pub(super) struct Session {
    channel: Channel,
    _connection: Connection,
    /// Where the source works. It and its receipts can be dropped elsewhere.
    pub(super) runtime: Handle,
}

/// A consumer on its channel.
struct Consuming {
    consumer: Consumer,
    session: Arc<Session>,
    /// A redelivery has shown that the queue does not count a return.
    returns_are_free: bool,
}

impl RabbitMqSource {
    /// Consumes from this RabbitMQ; does not connect yet.
    pub fn new(config: RabbitMqConfig, subscription: RabbitMqSubscription) -> Self {
        Self {
            config,
            subscription,
            starting: None,
            consuming: None,
            withheld: Arc::default(),
            expiring: None,
            runtime: None,
        }
    }

    /// Returns what was not delivered, but no message near its limit.
    fn end(&mut self) -> impl Future<Output = Closed> + Send + 'static {
        // At once, because the receipts hold what they are withheld in.
        let withheld = self.withheld.close();
        let (keep, give_back): (Vec<_>, Vec<_>) = withheld.into_iter().partition(|(_, receipt)| receipt.is_near_limit());
        let (starting, mut consuming) = (self.starting.take(), self.consuming.take());
        let (subscription, withheld) = (self.subscription.clone(), Arc::clone(&self.withheld));
        async move {
            let near_limit = keep.into_iter().map(|(message, receipt)| Delivery::new(message, receipt));
            let mut closed = Closed::default().near_limit(near_limit.collect());
            let until = Instant::now() + RETURNED_WITHIN;
            if let Some(starting) = starting
                && let Ok(Ok(Ok(started))) = timeout_at(until, starting).await
            {
                consuming = Some(started);
            }
            let ahead = match consuming {
                Some(consuming) => consuming.cancel(&subscription, &withheld, until).await,
                None => Vec::new(),
            };
            let (keep, ahead): (Vec<_>, Vec<_>) = ahead.into_iter().partition(|(_, receipt)| receipt.is_near_limit());
            let near_limit = keep.into_iter().map(|(message, receipt)| Delivery::new(message, receipt));
            closed.near_limit.extend(near_limit);
            let returning = async {
                for (_, receipt) in give_back.into_iter().chain(ahead) {
                    closed.returned += u64::from(receipt.give_back().await);
                }
            };
            if timeout_at(until, returning).await.is_err() {
                tracing::debug!("the broker does not take messages back: they come again when the connection ends");
            }
            closed
        }
    }
}

impl Drop for RabbitMqSource {
    fn drop(&mut self) {
        let ending = self.end();
        // Without a runtime the receipts return their messages as they are dropped.
        if let Some(runtime) = self.runtime.take() {
            runtime.spawn(async move { drop(ending.await) });
        }
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
            runtime: Handle::current(),
        };
        Ok(Self {
            consumer,
            session: Arc::new(session),
            returns_are_free: false,
        })
    }

    fn receive(
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
        let receipt = RabbitMqReceipt::new(
            delivery.acker,
            is_withheld.then_some(hold),
            counts_releases,
            self.returns_are_free,
            is_near_limit,
            subscription.dead_letter_exchange,
            Arc::clone(&self.session),
        );
        (message, receipt)
    }

    /// Cancels the consumer: the broker would send it again what is returned. Returns what the broker
    /// had sent before, also when it does not answer.
    async fn cancel(
        mut self,
        subscription: &RabbitMqSubscription,
        withheld: &Arc<Withheld<RabbitMqReceipt>>,
        until: Instant,
    ) -> Vec<(Message, RabbitMqReceipt)> {
        let options = BasicCancelOptions::default();
        let cancelling = self.session.channel.basic_cancel(self.consumer.tag(), options);
        if !matches!(timeout_at(until, cancelling).await, Ok(Ok(()))) {
            tracing::debug!("the broker does not cancel the consumer: what it has sent comes again when the connection ends");
        }
        let mut ahead = Vec::new();
        // After this time it is only what is here already.
        while let Ok(Some(Ok(delivery))) = timeout_at(until, self.consumer.next()).await {
            ahead.push(self.receive(subscription, withheld, delivery));
        }
        ahead
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
        self.runtime = Some(Handle::current());
        if self.expiring.as_ref().is_none_or(JoinHandle::is_finished) {
            self.expiring = Some(tokio::spawn(Arc::clone(&self.withheld).expire()));
        }
        let consuming = match &mut self.consuming {
            Some(consuming) => consuming,
            none => {
                let starting = self.starting.get_or_insert_with(|| {
                    let (config, subscription) = (self.config.clone(), self.subscription.clone());
                    tokio::spawn(async move { timeout(config.timeout(), Consuming::start(&config, &subscription)).await? })
                });
                // While the broker is away a message may be only here.
                let started = tokio::select! {
                    (message, receipt) = self.withheld.next() => return Ok(Some(Delivery::new(message, receipt))),
                    started = starting => started,
                };
                self.starting = None;
                none.insert(started??)
            }
        };
        loop {
            // In random order, so that a queue that always has messages does not keep the others
            // waiting.
            let delivered = tokio::select! {
                (message, receipt) = self.withheld.next() => return Ok(Some(Delivery::new(message, receipt))),
                delivered = consuming.consumer.next() => delivered,
            };
            let error = match delivered {
                Some(Ok(delivery)) => {
                    let (message, receipt) = consuming.receive(&self.subscription, &self.withheld, delivery);
                    // Its channel may have been closed since.
                    if receipt.comes_by_itself() {
                        continue;
                    }
                    return Ok(Some(Delivery::new(message, receipt)));
                }
                Some(Err(error)) => error.into(),
                None => CANCELLED.into(),
            };
            // The next consumer has a connection of its own.
            self.consuming = None;
            return Err(error);
        }
    }

    async fn close(&mut self) -> Closed {
        self.end().await
    }
}
