//! Processes a batch: finds the route of each message, attempts the messages, settles the results.

use std::{ptr, time::Duration};

use futures_util::future::join_all;
use tokio::time::Instant;

use super::Runtime;
use crate::{
    Error, Message, Processed, Settlement, Source,
    consumer::{
        attempt::attempt_route, queue::QueuedMessage, rejections::KeptAs, routes::Route,
        summary::DeliveryOutcome, verdict::Verdict,
    },
    error::causes,
    lease::NotedLease,
    panics::unwinding,
    stored::Stored,
};

/// The reasons for the return of a message that was not handled.
const PAUSED: &str = "its destination is paused after a failure of the environment";
const NOT_DUE: &str = "it is not due yet, or another process holds it";

impl<S: Source> Runtime<S> {
    pub(super) async fn process(&self, batch: Vec<QueuedMessage>) {
        for (route, group) in self.by_route(batch).await {
            if let Some(pause) = self.breakers.pause_of(&route.destination) {
                let given_back = group.into_iter().map(|queued| {
                    self.release_or_keep(queued, pause, DeliveryOutcome::GivenBack, PAUSED)
                });
                join_all(given_back).await;
                continue;
            }
            let messages: Vec<Message> =
                group.iter().map(|queued| queued.message.clone()).collect();
            let began = Instant::now();
            let results = tokio::select! {
                biased;
                () = self.cut.cancelled() => None,
                results = attempt_route(&self.idem, &self.pool, route, &messages) => Some(results),
            };
            match results {
                Some(results) => {
                    let ends = group.into_iter().zip(results);
                    join_all(
                        ends.map(|(queued, result)| {
                            self.settle_result(queued, route, began, result)
                        }),
                    )
                    .await;
                }
                None => {
                    join_all(
                        group
                            .into_iter()
                            .map(|queued| self.release_attempted(queued)),
                    )
                    .await;
                }
            }
        }
    }

    /// Groups the messages by route, each group in the order of delivery. Rejects the messages that
    /// match no route.
    async fn by_route(&self, batch: Vec<QueuedMessage>) -> Vec<(&Route, Vec<QueuedMessage>)> {
        let mut groups: Vec<(&Route, Vec<QueuedMessage>)> = Vec::new();
        for mut queued in batch {
            let found = unwinding(async { self.routes.find(&queued.message) }).await;
            match found {
                Ok(Some(route)) => {
                    queued.message = queued
                        .message
                        .with_destination(route.destination.clone())
                        .with_noted_lease(NotedLease::default());
                    match groups.iter_mut().find(|(other, _)| ptr::eq(*other, route)) {
                        Some((_, group)) => group.push(queued),
                        None => groups.push((route, vec![queued])),
                    }
                }
                Ok(None) => {
                    let reason = "no route takes this message";
                    self.reject(queued, reason.into(), KeptAs::Hash).await;
                }
                Err(panic) => {
                    self.failed(queued, &Error::Handler(panic.into()), Duration::ZERO)
                        .await
                }
            }
        }
        groups
    }

    /// Settles a message according to the result of its attempt, or keeps it for another attempt.
    async fn settle_result(
        &self,
        queued: QueuedMessage,
        route: &Route,
        began: Instant,
        result: Result<Processed, Error>,
    ) {
        if let Ok(processed) = &result {
            let is_handled = matches!(
                processed,
                Processed::New { .. } | Processed::Unprotected { .. }
            );
            let breakers = &self.breakers;
            breakers.succeeded(&route.destination, began, is_handled);
        }
        // The futures of a whole batch exist at the same time. The rare branches are boxed, so that
        // these futures are small.
        match Verdict::of(result) {
            Verdict::Over(outcome) => {
                self.failures.forget(&queued.message);
                self.settle(queued, Settlement::Acknowledge, outcome).await;
            }
            Verdict::Rejected { reason, kept_as } => {
                Box::pin(self.reject(queued, reason, kept_as)).await;
            }
            Verdict::Again { after } => {
                let release =
                    self.release_or_keep(queued, after, DeliveryOutcome::Retried, NOT_DUE);
                Box::pin(release).await;
            }
            Verdict::Failed { error, after } => Box::pin(self.failed(queued, &error, after)).await,
            Verdict::Environment(error) => {
                Box::pin(self.failed_by_environment(queued, route, &error)).await;
            }
        }
    }

    async fn failed_by_environment(&self, queued: QueuedMessage, route: &Route, error: &Error) {
        let (breakers, failures) = (&self.breakers, &self.failures);
        match breakers.judge(failures, &queued.message, &route.destination, error) {
            None => self.failed(queued, error, Duration::ZERO).await,
            Some(after) => {
                // Wake the worker that fetches, because it must stop fetching at once.
                self.changed.notify_one();
                self.release_or_keep(queued, after, DeliveryOutcome::GivenBack, &causes(error))
                    .await;
            }
        }
    }

    /// Releases a message that this worker was processing when the grace period ended.
    async fn release_attempted(&self, queued: QueuedMessage) {
        if queued.message.stored().is_some_and(Stored::is_in_handler) {
            // The lease is not released, because a thread or task of the handler may still run. The
            // inbox hands out the message when the lease has expired.
            self.counters.count(DeliveryOutcome::GivenBack);
            self.finish(queued.ordering_key, queued.permit);
        } else if queued.may_end_with_release() || queued.is_leased() {
            // The transaction of the attempt may still hold the claim or the lease. So a later step
            // of the shutdown, after the rollback, ends the lease or keeps the message.
            self.queue.delay(queued, Instant::now());
        } else {
            self.release_at_stop(queued).await;
        }
    }
}
