//! Fetches the messages of a consumer: from its source, and from the durable inboxes of the
//! messages that this consumer rejected and that an operator requeued. After a failure, the source
//! or the inbox is polled again after a pause.

use std::{future::pending, time::Duration};

use deadpool_postgres::Pool;
use futures_util::{
    FutureExt,
    future::{join_all, select_all},
};
use idem_client::Destination;
use tokio::time::{Instant, sleep_until, timeout};

use super::{Closed, Delivery, Source};
use crate::{
    backoff::{Backoff, Pauses},
    inbox::DurableSource,
    panics::unwinding,
    telemetry::{self, warn_if_new},
    transport::TransportError,
};

/// The pauses of the source.
const PAUSES: Pauses = Pauses::from_millis(100, 5_000);
/// The pauses while an inbox cannot be read, for example without a grant.
const INBOX_PAUSES: Pauses = Pauses::from_millis(1_000, 60_000);
/// The interval at which the inboxes are read, and so the longest delay of a requeued message. Each
/// read is one short statement for each destination.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The longest time that closing the inboxes may take. It is shorter than the consumer's limit for
/// closing the whole intake.
const INBOXES_CLOSED_WITHIN: Duration = Duration::from_secs(3);
/// A source that has waited longer than this for a message had recovered from its last failure.
const RECOVERED: Duration = Duration::from_secs(60);

/// The source and the inboxes. The worker that holds the lock on the intake fetches from them.
pub(super) struct Intake<S> {
    pub(super) source: RetryingSource<S>,
    inboxes: Vec<RetryingSource<DurableSource>>,
}

impl<S: Source> Intake<S> {
    /// Creates the intake of a source, of the inboxes of these destinations, and of the inbox of
    /// messages that matched no route.
    pub(super) fn new(
        source: S,
        pool: &Pool,
        handled: impl IntoIterator<Item = Destination>,
        unrouted: Destination,
    ) -> Self {
        let inbox = |destination: Destination, is_unrouted| {
            let pool = pool.clone();
            RetryingSource::new(
                DurableSource::looking(pool, destination.clone(), LOOK_EVERY, is_unrouted),
                Some(destination),
                INBOX_PAUSES,
            )
        };
        let handled = handled
            .into_iter()
            .map(|destination| inbox(destination, false));
        Self {
            source: RetryingSource::new(source, None, PAUSES),
            inboxes: handled.chain([inbox(unrouted, true)]).collect(),
        }
    }

    /// Waits for the next delivery. Returns `None` when the source has ended. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Delivery> {
        // `select_all` prefers the first inbox that has a message, so rotate the inboxes to be
        // fair.
        self.inboxes.rotate_left(1);
        let requeued = select_all(self.inboxes.iter_mut().map(|inbox| {
            let next = async {
                match inbox.next().await {
                    Some(delivery) => delivery,
                    // The inbox is closed. The others continue.
                    None => pending().await,
                }
            };
            next.boxed()
        }));
        // `select!` polls in random order, so requeued messages are also read while the source
        // always has messages.
        tokio::select! {
            delivery = self.source.next() => delivery,
            (delivery, ..) = requeued => Some(delivery),
        }
    }

    /// Closes the source and the inboxes, which return their prefetched messages.
    pub(super) async fn close(&mut self) -> Closed {
        let source = async {
            unwinding(self.source.source.close())
                .await
                .unwrap_or_else(|_| {
                    tracing::warn!("the source panicked when it was closed");
                    Closed::default()
                })
        };
        // Close both at the same time, with a limit for the inboxes. So if the database does not
        // respond, the messages that the source has returned are still counted.
        let inboxes = join_all(self.inboxes.iter_mut().map(|inbox| inbox.source.close()));
        let (mut closed, inboxes) = tokio::join!(source, timeout(INBOXES_CLOSED_WITHIN, inboxes));
        match inboxes {
            Ok(inboxes) => {
                closed.returned += inboxes.iter().map(|inbox| inbox.returned).sum::<u64>()
            }
            Err(_) => tracing::debug!(
                "cannot return requeued messages to the database: \
                 they stay leased until their leases expire"
            ),
        }
        closed
    }
}

/// A source that is polled again after a failure, with an exponential back-off.
pub(super) struct RetryingSource<S> {
    source: S,
    /// The destination of an inbox of requeued messages. The source of the consumer has none.
    inbox_of: Option<Destination>,
    pauses: Backoff,
    not_before: Option<Instant>,
    pub(super) has_ended: bool,
    /// The last error of the source since its last delivery.
    pub(super) last_error: Option<TransportError>,
}

impl<S: Source> RetryingSource<S> {
    fn new(source: S, inbox_of: Option<Destination>, pauses: Pauses) -> Self {
        Self {
            source,
            inbox_of,
            pauses: pauses.start(),
            not_before: None,
            has_ended: false,
            last_error: None,
        }
    }

    /// Waits for the next delivery and retries after failures of the source. Returns `None` when
    /// the source has ended. Cancel safe.
    async fn next(&mut self) -> Option<Delivery> {
        while !self.has_ended {
            if let Some(not_before) = self.not_before {
                sleep_until(not_before).await;
                self.not_before = None;
            }
            let polled_at = Instant::now();
            let result = unwinding(self.source.next())
                .await
                .unwrap_or_else(|panic| Err(panic.into()));
            match result {
                Ok(Some(delivery)) => {
                    self.pauses.reset();
                    if self.last_error.take().is_some() {
                        let destination = self.inbox_of.as_ref().map(Destination::as_str);
                        tracing::info!(destination, "the source delivers again");
                    }
                    return Some(delivery);
                }
                Ok(None) => self.has_ended = true,
                Err(error) => {
                    let pause = self.pauses.next();
                    let cause: &dyn std::error::Error = &*error;
                    let known = self.last_error.as_ref().map(ToString::to_string);
                    let is_new =
                        known != Some(error.to_string()) || polled_at.elapsed() > RECOVERED;
                    if let Some(destination) = self.inbox_of.as_ref().map(Destination::as_str) {
                        warn_if_new!(
                            is_new,
                            error = cause,
                            destination,
                            ?pause,
                            "cannot read requeued messages"
                        );
                    } else {
                        warn_if_new!(
                            is_new,
                            error = cause,
                            ?pause,
                            "the source failed and is retried"
                        );
                        telemetry::source_failed();
                    }
                    self.not_before = Some(Instant::now() + pause);
                    self.last_error = Some(error);
                }
            }
        }
        None
    }
}
