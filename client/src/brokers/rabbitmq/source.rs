//! Deliveries of a queue.

use std::{future::Future, mem, sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    task::JoinHandle,
    time::{Instant, timeout_at},
};

use super::{
    RabbitMqConfig, RabbitMqSubscription, consuming::Consuming, receipt::RabbitMqReceipt,
    starting::Starting,
};
use crate::{
    Closed, Delivery, Source, TransportError,
    brokers::withheld::{Withheld, Withhold},
};

/// How long the broker may take for all that is returned, and before that for a consumer that is
/// still being started. After such a consumer it has half of the time for all that is returned: 4.5
/// s together, less than the 5 s that a stop gives to the close of its source.
const RETURNED_WITHIN: Duration = Duration::from_secs(3);

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
/// [`Consumer`](crate::Consumer) keeps it. A source that is dropped without a close does not return
/// it either: the queue counts the end of the connection, and may delete it. With a dead-letter
/// exchange it is returned like any other.
///
/// [`Reject`](crate::Settlement::Reject) gives a message to the queue's dead-letter exchange, when
/// the subscription says that there [is one](RabbitMqSubscription::dead_letter_exchange). Otherwise
/// a [`Consumer`](crate::Consumer) keeps the message in `idem.dead_letter` and acknowledges it;
/// settled by hand, it is an error, and the message comes again.
///
/// A message has the queue as its topic, and as its key the header `idem-key`.
/// [`deliveries`](crate::Message::deliveries) is exact on quorum queues (since 4.3: the failures,
/// and this delivery). Classic queues know no more than that the message came before, and do not
/// count from then on. There are no coordinates.
///
/// It connects at the first call of `next`, and again at the next one after the connection was
/// lost.
pub struct RabbitMqSource {
    config: RabbitMqConfig,
    subscription: RabbitMqSubscription,
    starting: Starting,
    consuming: Option<Consuming>,
    /// Also of consumers that have ended: a message can be settled while its channel is open.
    withheld: Arc<Withheld<RabbitMqReceipt>>,
    /// Returns withheld messages when their time is over.
    expiring: Option<JoinHandle<()>>,
    /// Where the source works; none before the first call of `next`.
    runtime: Option<Handle>,
}

impl RabbitMqSource {
    /// Consumes from this RabbitMQ; does not connect yet.
    pub fn new(config: RabbitMqConfig, subscription: RabbitMqSubscription) -> Self {
        Self {
            config,
            subscription,
            starting: Starting::default(),
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
        let (keep, give_back): (Vec<_>, Vec<_>) = withheld
            .into_iter()
            .partition(|(_, receipt)| receipt.is_near_limit());
        let (starting, consuming) = (mem::take(&mut self.starting), self.consuming.take());
        let (subscription, withheld) = (self.subscription.clone(), Arc::clone(&self.withheld));
        async move {
            let near_limit = keep
                .into_iter()
                .map(|(message, receipt)| Delivery::new(message, receipt));
            let mut closed = Closed::default().near_limit(near_limit.collect());
            let (consuming, within) = match consuming {
                Some(consuming) => (Some(consuming), RETURNED_WITHIN),
                None => (starting.finish(RETURNED_WITHIN).await, RETURNED_WITHIN / 2),
            };
            let until = Instant::now() + within;
            let ahead = match consuming {
                Some(consuming) => consuming.cancel(&subscription, &withheld, until).await,
                None => Vec::new(),
            };
            let (keep, ahead): (Vec<_>, Vec<_>) = ahead
                .into_iter()
                .partition(|(_, receipt)| receipt.is_near_limit());
            let near_limit = keep
                .into_iter()
                .map(|(message, receipt)| Delivery::new(message, receipt));
            closed.near_limit.extend(near_limit);
            let returning = async {
                for (_, receipt) in give_back.into_iter().chain(ahead) {
                    closed.returned += u64::from(receipt.give_back().await);
                }
            };
            if timeout_at(until, returning).await.is_err() {
                tracing::debug!(
                    "the broker does not take messages back: they come again when the connection ends"
                );
            }
            closed
        }
    }
}

impl Drop for RabbitMqSource {
    fn drop(&mut self) {
        let ending = self.end();
        // Without a runtime there is nothing to return.
        if let Some(runtime) = self.runtime.take() {
            runtime.spawn(async move { drop(ending.await) });
        }
    }
}

impl Source for RabbitMqSource {
    async fn next(&mut self) -> Result<Option<Delivery>, TransportError> {
        self.runtime = Some(Handle::current());
        if self.expiring.as_ref().is_none_or(JoinHandle::is_finished) {
            self.expiring = Some(tokio::spawn(Arc::clone(&self.withheld).expire()));
        }
        let withheld = Arc::clone(&self.withheld);
        let consuming = match self.consuming.take() {
            Some(consuming) => consuming,
            // While the broker is away a message may be only here.
            None => tokio::select! {
                (message, receipt) = withheld.next() => return Ok(Some(Delivery::new(message, receipt))),
                started = self.starting.consumer(&self.config, &self.subscription) => started?,
            },
        };
        let consuming = self.consuming.insert(consuming);
        loop {
            // In random order, so that a queue that always has messages does not keep the others
            // waiting.
            let delivered = tokio::select! {
                (message, receipt) = withheld.next() => return Ok(Some(Delivery::new(message, receipt))),
                delivered = consuming.next() => delivered,
            };
            match delivered {
                Ok(delivery) => {
                    let (message, receipt) =
                        consuming.receive(&self.subscription, &withheld, delivery);
                    // Its channel may have been closed since.
                    if !receipt.comes_by_itself() {
                        return Ok(Some(Delivery::new(message, receipt)));
                    }
                }
                Err(error) => {
                    // The next consumer has a connection of its own.
                    self.consuming = None;
                    return Err(error);
                }
            }
        }
    }

    async fn close(&mut self) -> Closed {
        self.end().await
    }
}
