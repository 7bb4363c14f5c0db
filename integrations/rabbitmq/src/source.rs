//! The source: the deliveries of a queue.

use std::{future::Future, mem, sync::Arc, time::Duration};

use idem_runtime::{
    Delivery, Source,
    consumer::Closed,
    transport::{
        TransportError,
        withheld::{Withheld, Withhold},
    },
};
use tokio::{
    runtime::Handle,
    task::JoinHandle,
    time::{Instant, timeout_at},
};

use super::{
    RabbitMqConfig, RabbitMqSubscription, consuming::Consuming, receipt::RabbitMqReceipt,
    starting::Starting,
};

/// The longest time to wait at the end of a source: for a consumer that is still being started, or
/// for the return of all messages. After the wait for such a consumer, half of this time is allowed
/// for the returns. Both waits together take at most 4.5 s, which is less than the 5 s that a stop
/// allows for the close of a source.
const RETURNED_WITHIN: Duration = Duration::from_secs(3);

/// A source of messages: one queue of RabbitMQ.
///
/// # Messages
///
/// The topic of a message is the name of the queue, and its key is the header `idem-key`. There are
/// no coordinates.
///
/// [`deliveries`](idem_runtime::Message::deliveries) is exact on quorum queues. Since RabbitMQ 4.3
/// it is the number of failures plus this delivery. A classic queue only marks a message that was
/// delivered before, so the number is unknown from the second delivery on.
///
/// # Settlements
///
/// - [`Retry`](idem_runtime::Settlement::Retry) returns a message to its queue with `basic.reject`,
///   which every quorum queue counts as a failure. With a delay the message first waits in this
///   process for at most five minutes and takes one of the `prefetch` places. For longer delays,
///   and to free the place, give the queue a dead-letter exchange that leads to a queue with a time
///   to live and from there back, and reject the message.
/// - [`Release`](idem_runtime::Settlement::Release) is for a message that did not fail. A quorum
///   queue before RabbitMQ 4.3 counts each return and deletes the message at its delivery limit. So
///   the source withholds the message: it leaves the message unacknowledged and redelivers it
///   itself. It does so for at most [`hold_s`](RabbitMqSubscription::hold_s) after the broker
///   delivered the message, and then returns the message. Other queues do not count `basic.nack`,
///   so the source returns the message to them with `basic.nack`. The first redelivery shows
///   whether a queue counts returns. Until then the source assumes that it does.
/// - [`Reject`](idem_runtime::Settlement::Reject) moves a message to the dead-letter exchange of
///   the queue, if the subscription states that there [is an
///   exchange](RabbitMqSubscription::dead_letter_exchange). Otherwise a
///   [`Consumer`](idem_runtime::Consumer) keeps the message in `idem.dead_letter` and acknowledges
///   it, while a direct settlement returns an error and the message is redelivered.
///
/// Dropping a receipt returns its message to the queue.
///
/// # The delivery limit
///
/// RabbitMQ 4 can delete a message that its quorum queue has counted 15 to 20 times when the queue
/// counts it again. So the source does not return such a message if the queue counts returns:
///
/// - After a release, after the drop of its receipt and after the end of its connection, the source
///   redelivers the message itself.
/// - At the close of the source, a [`Consumer`](idem_runtime::Consumer) keeps the message.
/// - A source that is dropped without a close does not return the message. The queue then counts
///   the end of the connection, and can delete the message.
///
/// If the queue has a dead-letter exchange, the source returns such a message as usual.
///
/// # Connections and the end
///
/// The source connects in the first [`next`](Source::next). When the connection is lost, it
/// reconnects in the following `next`. When the connection ends, every quorum queue counts each
/// message that was delivered over it and not settled. [`close`](Source::close) returns the
/// undelivered messages to the queue.
pub struct RabbitMqSource {
    config: RabbitMqConfig,
    subscription: RabbitMqSubscription,
    starting: Starting,
    consuming: Option<Consuming>,
    /// The withheld messages, including messages of consumers that have ended: a message can be
    /// settled as long as its channel is open.
    withheld: Arc<Withheld<RabbitMqReceipt>>,
    /// The task that returns withheld messages at the end of their time.
    expiring: Option<JoinHandle<()>>,
    /// The tokio runtime in which the source runs. `None` before the first `next`.
    runtime: Option<Handle>,
}

impl RabbitMqSource {
    /// Returns a source for this subscription at this server. Does not connect.
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

    /// Ends the source and returns the undelivered messages to the queue. Messages near their
    /// delivery limit are not returned to the queue but to the caller, in the result.
    fn end(&mut self) -> impl Future<Output = Closed> + Send + 'static {
        // Empty the set now, because the future may be dropped without a poll. Each receipt refers
        // to the set that contains it, so the two would keep each other alive.
        let withheld = self.withheld.close();
        let (keep, give_back): (Vec<_>, Vec<_>) = withheld
            .into_iter()
            .partition(|(_, receipt)| receipt.is_near_limit);
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
                .partition(|(_, receipt)| receipt.is_near_limit);
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
                    "the broker did not take back all messages in time: it redelivers them when \
                     the connection ends"
                );
            }
            closed
        }
    }
}

impl Drop for RabbitMqSource {
    fn drop(&mut self) {
        let ending = self.end();
        // Without a runtime, `next` was never called. The source has fetched no message then, so
        // nothing must be returned.
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
            // While the broker is not available, withheld messages near their limit must still be
            // delivered.
            None => tokio::select! {
                (message, receipt) = withheld.next() => {
                    return Ok(Some(Delivery::new(message, receipt)));
                }
                started = self.starting.consumer(&self.config, &self.subscription) => started?,
            },
        };
        let consuming = self.consuming.insert(consuming);
        loop {
            // `select!` polls in random order, so that a queue that always has messages does not
            // delay the withheld messages without end.
            let delivered = tokio::select! {
                (message, receipt) = withheld.next() => {
                    return Ok(Some(Delivery::new(message, receipt)));
                }
                delivered = consuming.next() => delivered,
            };
            match delivered {
                Ok(delivery) => {
                    let (message, receipt) =
                        consuming.receive(&self.subscription, &withheld, delivery);
                    // The channel may have been closed since the delivery.
                    if !receipt.comes_by_itself() {
                        return Ok(Some(Delivery::new(message, receipt)));
                    }
                }
                Err(error) => {
                    // The next consumer opens a new connection.
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
