//! The source: a member of a consumer group.

use std::{sync::Arc, thread};

use idem_runtime::{
    Delivery, Source,
    consumer::Closed,
    transport::{TransportError, wait_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    KafkaConfig, KafkaSubscription,
    dead_letter::DeadLetters,
    driver::{Driver, Shared},
    receipt::KafkaReceipt,
};

/// A source of messages: the topics of Kafka, consumed as a member of a consumer group.
///
/// An offset is committed after its message was settled.
///
/// # Messages
///
/// The id of a message is its header `message-id`. For messages without this header use
/// [`IdStrategy::Coordinates`](idem_runtime::policy::IdStrategy) or a business id. Keys and headers
/// that are not UTF-8 are encoded as base64. If a header occurs more than once, the last value
/// counts.
///
/// Messages of one key within a partition are handled one after the other, unless
/// [`ordered_by_key`](idem_runtime::Consumer::ordered_by_key) disables this. Kafka delivers
/// messages in order, but without this rule a failed message would be redelivered after its
/// successors.
///
/// A new group begins with the oldest messages. The property `auto.offset.reset` changes this.
///
/// # Settlements
///
/// - [`Acknowledge`](idem_runtime::Settlement::Acknowledge) settles an offset. The source commits
///   an offset when all offsets below it are settled. It commits every second, when no message is
///   unsettled, when partitions are revoked, and at the end.
/// - [`Retry`](idem_runtime::Settlement::Retry) and [`Release`](idem_runtime::Settlement::Release):
///   this source redelivers the message itself, because a message cannot be returned to Kafka. The
///   offset stays unsettled. Kafka does not count deliveries, so the first
///   [`deliveries`](idem_runtime::Message::deliveries) of a message is `None`, also after a
///   restart. The source counts its own redeliveries, from 2 on.
/// - [`Reject`](idem_runtime::Settlement::Reject) publishes the record to the dead-letter topic,
///   and settles the offset when that is confirmed. Without such a topic a
///   [`Consumer`](idem_runtime::Consumer) keeps the message in `idem.dead_letter` and acknowledges
///   it.
///
/// # The end
///
/// [`close`](Source::close), which a consumer calls, waits for the last commit. A source that is
/// dropped without a close commits and leaves its group in the background, after its last receipt
/// was dropped. If the process ends before this commit, messages are redelivered, and the claims
/// find the duplicates.
pub struct KafkaSource {
    shared: Arc<Shared>,
    dead_letters: Arc<DeadLetters>,
    /// Cancelled when the thread has left the group.
    ended: CancellationToken,
}

impl KafkaSource {
    /// Returns a source for this subscription, and joins the group in the background.
    ///
    /// # Errors
    ///
    /// A setting of the subscription or a property is not valid, or the thread cannot be started.
    pub fn new(
        config: &KafkaConfig,
        subscription: &KafkaSubscription,
    ) -> Result<Self, TransportError> {
        subscription.check()?;
        let dead_letters = Arc::new(DeadLetters::new(config, &subscription.dead_letter)?);
        let shared = Arc::new(Shared::default());
        let driver = Driver::new(config, subscription, Arc::clone(&shared))?;
        let ended = CancellationToken::new();
        let at_end = ended.clone().drop_guard();
        thread::Builder::new()
            .name("idem-kafka".into())
            .spawn(move || {
                driver.run();
                drop(at_end);
            })?;
        Ok(Self {
            shared,
            dead_letters,
            ended,
        })
    }
}

impl Source for KafkaSource {
    async fn next(&mut self) -> Result<Option<Delivery>, TransportError> {
        loop {
            let has_ended = self.ended.is_cancelled();
            if let Some(fetched) = self.shared.hand_out()? {
                let message = fetched.message.clone();
                let receipt = KafkaReceipt {
                    shared: Arc::clone(&self.shared),
                    dead_letters: Arc::clone(&self.dead_letters),
                    fetched: Some(fetched),
                };
                return Ok(Some(Delivery::new(message, receipt)));
            }
            if has_ended {
                return Ok(None);
            }
            tokio::select! {
                () = self.shared.arrived.notified() => {}
                () = self.ended.cancelled() => {}
                () = wait_until(self.shared.next_due().map(Into::into)) => {}
            }
        }
    }

    /// Stops fetching, waits until all receipts are settled or dropped, commits, and leaves the
    /// group. Undelivered messages count as returned, because their offsets are not committed.
    async fn close(&mut self) -> Closed {
        let mut closed = Closed::default();
        closed.returned = self.shared.stop();
        self.ended.cancelled().await;
        closed
    }

    fn keeps_order_of_keys(&self) -> bool {
        true
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        self.shared.stop();
    }
}
