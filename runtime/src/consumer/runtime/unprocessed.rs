//! Decides whether a message that was not processed is retried, released or rejected.

use std::time::Duration;

use idem_client::Destination;
use tokio_postgres::error::SqlState;

use super::{settle::in_time, state::Runtime};
use crate::{
    Error, Message, Settlement, Source,
    consumer::{
        queue::QueuedMessage,
        rejections::{KeptAs, keep},
        summary::DeliveryOutcome,
    },
    error::causes,
    process::caused_by_environment,
    telemetry,
};

impl<S: Source> Runtime<S> {
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
        self.counters.count(match settlement {
            Settlement::Reject { .. } => DeliveryOutcome::Rejected,
            _ => DeliveryOutcome::Retried,
        });
        telemetry::settled(message.given_destination(), &settlement);
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
            self.forget(&queued);
            return self
                .settle(
                    queued,
                    Settlement::Reject { reason },
                    DeliveryOutcome::Rejected,
                )
                .await;
        }
        match self.keep_letter(&queued.message, kept_as, &reason).await {
            Ok(_) => {
                self.forget(&queued);
                telemetry::settled(
                    queued.message.given_destination(),
                    &Settlement::Reject { reason },
                );
                self.counters.count(DeliveryOutcome::Rejected);
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

    /// Forgets the failures of a message that is finished.
    pub(super) fn forget(&self, queued: &QueuedMessage) {
        self.failures.forget(&queued.message);
        self.breakers.forget(&queued.message);
    }
}

/// Returns whether the environment is the reason that a dead letter could not be stored. The limit
/// on the number of dead letters (`configuration_limit_exceeded`) does not count, because messages
/// that are not rejected can still be processed.
pub(super) fn letter_failed_by_environment(error: &Error) -> bool {
    caused_by_environment(error)
        && error.sqlstate() != Some(&SqlState::CONFIGURATION_LIMIT_EXCEEDED)
}
