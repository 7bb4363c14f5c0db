//! Settles a message at its broker, or delays it in place, and releases its permit.

use std::{future::Future, sync::atomic::Ordering, time::Duration};

use tokio::time::timeout;

use super::{later, state::Runtime};
use crate::{
    Message, Settlement, Source,
    consumer::{
        queue::{Permit, QueuedMessage},
        summary::DeliveryOutcome,
    },
    panics::unwinding,
    telemetry,
    transport::TransportError,
};

/// The longest time that a broker may take to confirm a settlement. It is longer than the limits of
/// all broker clients. The longest of these is 5 minutes, for a message in librdkafka.
const SETTLEMENT: Duration = Duration::from_secs(600);

impl<S: Source> Runtime<S> {
    /// Returns a message to its broker for redelivery. If the return would change the order of its
    /// key or might delete the message, the message is retried in place.
    pub(super) async fn redeliver(
        &self,
        queued: QueuedMessage,
        settlement: Settlement,
        after: Duration,
        outcome: DeliveryOutcome,
    ) {
        if queued.ordering_key.is_none() && !queued.may_end_with_release() {
            return self.settle(queued, settlement, outcome).await;
        }
        if outcome == DeliveryOutcome::Retried {
            self.counters.count(outcome);
        }
        self.queue.delay(queued, later(after));
        self.changed.notify_one();
    }

    pub(super) async fn settle(
        &self,
        queued: QueuedMessage,
        settlement: Settlement,
        outcome: DeliveryOutcome,
    ) {
        self.counters.count(outcome);
        telemetry::settled(queued.message.given_destination(), &settlement);
        self.settle_at_broker(queued, settlement).await;
    }

    /// Settles the message at its broker and releases its permit.
    pub(super) async fn settle_at_broker(&self, queued: QueuedMessage, settlement: Settlement) {
        let QueuedMessage {
            message,
            receipt,
            ordering_key,
            permit,
            ..
        } = queued;
        let is_rejected = matches!(settlement, Settlement::Reject { .. });
        if let Err(error) = in_time(async { receipt.settle(settlement).await }).await {
            self.not_confirmed(&message, &*error);
            if is_rejected {
                self.failures.letter_is_refused(&message);
            }
        }
        self.finish(ordering_key, permit);
    }

    pub(super) fn not_confirmed(
        &self,
        message: &Message,
        error: &(dyn std::error::Error + 'static),
    ) {
        tracing::warn!(
            error,
            message_id = message.message_id(),
            "the settlement is not confirmed: the message may be redelivered"
        );
        self.counters.failed_settlements(1);
    }

    /// Releases the permit and the ordering key of a settled message.
    pub(super) fn finish(&self, ordering_key: Option<String>, permit: Permit) {
        if let Some(ordering_key) = &ordering_key {
            self.queue.release(ordering_key);
        }
        drop(permit);
        // Wake the worker that fetches only when it waits for the end of this message, because a
        // wake-up interrupts the fetch. If `has_ended` is not set yet, the worker sets it later by
        // a read-modify-write and then sees the released permit. A plain load could return an old
        // value, and the worker would wait without end.
        let is_awaited = ordering_key.is_some() || self.queue.has_ahead();
        if is_awaited || self.has_ended.fetch_or(false, Ordering::AcqRel) {
            self.changed.notify_one();
        }
    }

    pub(super) async fn release_at_stop(&self, queued: QueuedMessage) {
        let settlement = queued.given_back();
        self.settle(queued, settlement, DeliveryOutcome::GivenBack)
            .await;
    }

    /// Counts and logs settlements that the shutdown abandons.
    pub(super) fn count_unsettled(&self, unsettled: usize) {
        tracing::warn!(
            unsettled,
            "the shutdown reached its time limit before these messages were settled: \
             they may be redelivered"
        );
        self.counters.failed_settlements(unsettled as u64);
    }
}

/// Waits for a receipt. Returns an error if the receipt panics or the broker does not respond in
/// time. The message may be redelivered after such an error.
pub(super) async fn in_time<T>(
    settled: impl Future<Output = Result<T, TransportError>>,
) -> Result<T, TransportError> {
    match timeout(SETTLEMENT, unwinding(settled)).await {
        Ok(settled) => settled.unwrap_or_else(|panic| Err(panic.into())),
        Err(_) => {
            Err(format!("the broker did not confirm the settlement within {SETTLEMENT:?}").into())
        }
    }
}
