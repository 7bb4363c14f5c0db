//! A member of a consumer group, as a source.

use std::{sync::Arc, thread};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    KafkaConfig, KafkaSubscription,
    dead_letter::DeadLetters,
    driver::{Driver, Fetched, Shared},
    receipt::KafkaReceipt,
};
use crate::{Closed, Delivery, Source, TransportError};

/// Consumes topics as a member of a group. Offsets are committed after their messages were settled.
///
/// - *Acknowledge* lets the partition's offset move, as far as everything below it is settled too.
///   Commits go out every second, whenever nothing is under way, when partitions are revoked, and
///   at the end.
/// - *Retry* and *Release* make this source deliver the message again: Kafka cannot take it back.
///   Its offset holds meanwhile, and [`deliveries`](crate::Message::deliveries) is counted by this
///   source: it begins at 1 again after a restart.
/// - *Reject* publishes the record to the dead-letter topic, and settles it when that is confirmed.
///   Without such a topic a consumer keeps the message in `idem.dead_letter` and acknowledges it.
///
/// A message's id is its header `message-id`; without one choose
/// [`IdStrategy::Coordinates`](crate::IdStrategy), or a business id. Keys and headers that are not
/// UTF-8 are given in base64. Headers that occur twice: the last one counts.
///
/// A new group begins with the oldest messages; property `auto.offset.reset` changes that.
///
/// Messages of one key within a partition are handled one after the other, unless
/// [`ordered_by_key`](crate::Consumer::ordered_by_key) says otherwise: Kafka delivers them in
/// order, and a message that fails is delivered again behind its successors if nothing holds them.
///
/// [`close`](Source::close) waits for the last commit, and a consumer calls it. A source that is
/// dropped commits and leaves its group in the background, after its last receipt; when the process
/// ends before, messages come again and are duplicates.
pub struct KafkaSource {
    shared: Arc<Shared>,
    dead_letters: Arc<DeadLetters>,
    fetched: mpsc::UnboundedReceiver<Result<Fetched, TransportError>>,
    /// The thread has left the group.
    ended: CancellationToken,
}

impl KafkaSource {
    /// Joins the group in the background. An error is a subscription or a property that makes no
    /// sense.
    pub fn new(
        config: &KafkaConfig,
        subscription: &KafkaSubscription,
    ) -> Result<Self, TransportError> {
        subscription.check()?;
        let dead_letters = Arc::new(DeadLetters::new(config, &subscription.dead_letter)?);
        let shared = Arc::new(Shared::default());
        // Bounded by `max_unsettled`: what waits in it is not settled.
        let (sender, fetched) = mpsc::unbounded_channel();
        let driver = Driver::new(config, subscription, Arc::clone(&shared), sender)?;
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
            fetched,
            ended,
        })
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
                let receipt = KafkaReceipt::new(
                    Arc::clone(&self.shared),
                    Arc::clone(&self.dead_letters),
                    fetched,
                );
                return Ok(Some(Delivery::new(message, receipt)));
            }
        }
    }

    /// Stops fetching, waits until all receipts are settled or dropped, commits, and leaves the
    /// group. What was fetched ahead counts as returned: it is behind the committed offsets.
    async fn close(&mut self) -> Closed {
        self.shared.stop();
        self.ended.cancelled().await;
        let mut closed = Closed::default();
        while let Ok(fetched) = self.fetched.try_recv() {
            closed.returned += u64::from(fetched.is_ok());
        }
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
