//! A member of a consumer group, as a source.

use std::{sync::Arc, thread};

use tokio::sync::{mpsc, oneshot};

use super::{
    KafkaConfig, KafkaSubscription,
    dead_letter::DeadLetters,
    driver::{Driver, Fetched, Shared},
    receipt::KafkaReceipt,
};
use crate::{Delivery, Source, TransportError};

/// Consumes topics as a member of a group. Offsets are committed after their messages were settled.
///
/// - *Acknowledge* lets the partition's offset move, as far as everything below it is settled too. Commits go out every
///   second, whenever nothing is under way, when partitions are revoked, and at the end.
/// - *Retry* and *Release* make this source deliver the message again: Kafka cannot take it back.
///   Its offset holds meanwhile, and [`deliveries`](crate::Message::deliveries) is counted by this
///   source: it begins at 1 again after a restart.
/// - *Reject* publishes the record to the dead-letter topic, and settles it when that is confirmed.
///
/// A message's id is its header `message-id`; without one choose [`IdStrategy::Coordinates`](crate::IdStrategy), or a
/// business id. Keys and headers that are not UTF-8 are given in base64. Headers that occur twice: the last one counts.
///
/// A new group begins with the oldest messages; property `auto.offset.reset` changes that.
///
/// Drop it after the last receipt, or [close](Self::close) it: then its drop commits and leaves the group, which blocks for
/// some hundred milliseconds. Otherwise the last receipt does that, in the background.
pub struct KafkaSource {
    shared: Arc<Shared>,
    dead_letters: Arc<DeadLetters>,
    fetched: mpsc::UnboundedReceiver<Result<Fetched, TransportError>>,
    ended: oneshot::Receiver<()>,
}

impl KafkaSource {
    /// Joins the group in the background. An error is a subscription or a property that makes no sense.
    pub fn new(config: &KafkaConfig, subscription: &KafkaSubscription) -> Result<Self, TransportError> {
        subscription.check()?;
        let dead_letters = Arc::new(DeadLetters::new(config, &subscription.dead_letter)?);
        let shared = Arc::new(Shared::default());
        // Bounded by `max_unsettled`: what waits in it is not settled.
        let (sender, fetched) = mpsc::unbounded_channel();
        let driver = Driver::new(config, subscription, Arc::clone(&shared), sender)?;
        let (end, ended) = oneshot::channel();
        let at_end = Arc::clone(&shared);
        thread::Builder::new().name("idem-kafka".into()).spawn(move || {
            driver.run();
            at_end.end();
            // Nobody may be waiting.
            let _ = end.send(());
        })?;
        Ok(Self {
            shared,
            dead_letters,
            fetched,
            ended,
        })
    }

    /// Stops fetching, waits until all receipts are settled or dropped, commits, and leaves the group.
    pub async fn close(mut self) {
        self.shared.stop();
        // An error says that the thread is gone, which is what we wait for.
        let _ = (&mut self.ended).await;
    }
}

impl Source for KafkaSource {
    async fn next(&mut self) -> Result<Option<Delivery>, TransportError> {
        loop {
            let fetched = match self.fetched.recv().await {
                Some(Ok(fetched)) => fetched,
                Some(Err(error)) => {
                    self.shared.error_was_heard();
                    return Err(error);
                }
                None => return Ok(None),
            };
            // Its partition may have been revoked since it was fetched.
            if self.shared.hand_out(&fetched.ticket) {
                let message = fetched.message.clone();
                let receipt = KafkaReceipt::new(Arc::clone(&self.shared), Arc::clone(&self.dead_letters), fetched);
                return Ok(Some(Delivery::new(message, receipt)));
            }
        }
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        self.shared.stop_and_wait();
    }
}
