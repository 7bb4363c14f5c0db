//! Decides whether a message that was not processed is retried, released or rejected, settles
//! messages at their broker, and releases their permits.

use std::{future::Future, sync::atomic::Ordering, time::Duration};

use idem_client::Destination;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;

use super::{Runtime, later};
use crate::{
    Error, Message, Settlement, Source,
    consumer::{
        queue::{Permit, QueuedMessage},
        rejections::{KeptAs, keep},
        summary::DeliveryOutcome,
    },
    error::causes,
    panics::unwinding,
    process::caused_by_environment,
    telemetry,
    transport::TransportError,
};

/// The longest time that a broker may take to confirm a settlement. It is longer than the limits of
/// all broker clients. The longest of these is 5 minutes, for a message in librdkafka.
const SETTLEMENT: Duration = Duration::from_secs(600);

impl<S: Source> Runtime<S> {
    // A message that was not processed

    pub(super) async fn failed(
        &self,
        mut queued: QueuedMessage,
        error: &Error,
        at_least: Duration,
    ) {
        if queued.receipt.is_in_charge() {
            return self.report_failure(queued, error).await;
        }
        let (failures, pause) = self.failures.count(&mut queued);
        match pause {
            Some(pause) => {
                let after = pause.max(at_least);
                tracing::warn!(
                    error = causes(error),
                    ?after,
                    attempt = failures,
                    destination = queued.message.given_destination().map(Destination::as_str),
                    message_id = queued.message.message_id(),
                    "a message failed and is retried"
                );
                self.redeliver(
                    queued,
                    Settlement::Retry { after },
                    after,
                    DeliveryOutcome::Retried,
                )
                .await;
            }
            None => {
                let reason = format!("failed too often: {}", causes(error));
                self.reject(queued, reason, KeptAs::Itself).await;
            }
        }
    }

    /// Reports a failure to a source that manages failures itself.
    async fn report_failure(&self, queued: QueuedMessage, error: &Error) {
        let QueuedMessage {
            message,
            receipt,
            permit,
            ..
        } = queued;
        let settled = in_time(async { receipt.failed(causes(error)).await }).await;
        let settlement = match settled {
            Ok(settlement) => settlement,
            Err(cause) => {
                self.not_confirmed(&message, &*cause);
                Settlement::RETRY
            }
        };
        tracing::warn!(
            error = causes(error),
            ?settlement,
            attempt = message.deliveries(),
            destination = message.given_destination().map(Destination::as_str),
            message_id = message.message_id(),
            "a message failed"
        );
        let outcome = match settlement {
            Settlement::Reject { .. } => DeliveryOutcome::Rejected,
            _ => DeliveryOutcome::Retried,
        };
        self.record(&message, &settlement, outcome);
        self.finish(None, permit);
    }

    /// Releases a message that did not fail. If the broker may delete the message at this release,
    /// the message is rejected instead, so that it is kept.
    pub(super) async fn release_or_keep(
        &self,
        queued: QueuedMessage,
        after: Duration,
        outcome: DeliveryOutcome,
        cause: &str,
    ) {
        // A message with an ordering key is retried in place. It is not returned to its broker, so
        // the broker cannot delete it.
        if queued.ordering_key.is_none() && queued.costs_delivery_near_limit() {
            let reason = format!("its broker may delete it at the next return: {cause}");
            self.reject(queued, reason, KeptAs::Itself).await;
        } else {
            self.release(queued, after, outcome).await;
        }
    }

    /// Releases a message while the database is unavailable or cannot keep it.
    pub(super) async fn release_unkept(&self, queued: QueuedMessage) {
        self.release(
            queued,
            self.failures.first_pause(),
            DeliveryOutcome::GivenBack,
        )
        .await;
    }

    async fn release(&self, queued: QueuedMessage, after: Duration, outcome: DeliveryOutcome) {
        self.redeliver(queued, Settlement::Release { after }, after, outcome)
            .await;
    }

    /// Keeps a rejected message where its broker keeps dead letters, or in the database if the
    /// broker keeps none or refuses them.
    pub(super) async fn reject(&self, queued: QueuedMessage, reason: String, kept_as: KeptAs) {
        let destination = queued.message.given_destination();
        if queued.receipt.keeps_rejected() && !self.failures.are_letters_refused(&queued.message) {
            tracing::warn!(
                reason,
                destination = destination.map(Destination::as_str),
                message_id = queued.message.message_id(),
                topic = queued.message.topic(),
                "a message is rejected"
            );
            self.failures.forget(&queued.message);
            let rejected = Settlement::Reject { reason };
            return self
                .settle(queued, rejected, DeliveryOutcome::Rejected)
                .await;
        }
        match self.keep_letter(&queued.message, kept_as, &reason).await {
            Ok(_) => {
                self.failures.forget(&queued.message);
                let rejected = Settlement::Reject { reason };
                self.record(&queued.message, &rejected, DeliveryOutcome::Rejected);
                self.settle_at_broker(queued, Settlement::Acknowledge).await;
            }
            // The database cannot keep the message now, so the message is released to its broker.
            Err(error) if letter_failed_by_environment(&error) => {
                self.breakers.trip_all(&error);
                self.changed.notify_one();
                self.release_unkept(queued).await;
            }
            Err(error) => {
                let after = self.failures.pause_unkept(&queued.message);
                tracing::warn!(
                    error = causes(&error),
                    ?after,
                    message_id = queued.message.message_id(),
                    "a rejected message cannot be stored as a dead letter yet"
                );
                self.release(queued, after, DeliveryOutcome::GivenBack)
                    .await;
            }
        }
    }

    /// Stores a message in `idem.dead_letter`. Returns false when it is a dead letter already or
    /// was processed.
    pub(super) async fn keep_letter(
        &self,
        message: &Message,
        kept_as: KeptAs,
        reason: &str,
    ) -> Result<bool, Error> {
        let (destination, kept_as) = match message.given_destination() {
            Some(destination) => (destination.clone(), kept_as),
            // Ids are unique only within a destination, so a message without a destination is kept
            // under its hash.
            None => (self.routes.unrouted()?, KeptAs::Hash),
        };
        keep(
            &self.idem,
            &self.pool,
            &destination,
            message,
            kept_as,
            reason,
        )
        .await
    }

    // The settlement

    /// Returns a message to its broker for redelivery. If the return would change the order of its
    /// key or might delete the message, the message is retried in place.
    async fn redeliver(
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
        self.record(&queued.message, &settlement, outcome);
        self.settle_at_broker(queued, settlement).await;
    }

    /// Counts a settlement in the summary and in the metrics.
    pub(super) fn record(
        &self,
        message: &Message,
        settlement: &Settlement,
        outcome: DeliveryOutcome,
    ) {
        self.counters.count(outcome);
        telemetry::settled(message.given_destination(), settlement);
    }

    /// Settles the message at its broker and releases its permit.
    async fn settle_at_broker(&self, queued: QueuedMessage, settlement: Settlement) {
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
            self.queue.free_key(ordering_key);
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

/// Returns whether the environment is the reason that a dead letter could not be stored. The limit
/// on the number of dead letters (`configuration_limit_exceeded`) does not count, because messages
/// that are not rejected can still be processed.
pub(super) fn letter_failed_by_environment(error: &Error) -> bool {
    caused_by_environment(error)
        && error.sqlstate() != Some(&SqlState::CONFIGURATION_LIMIT_EXCEEDED)
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
