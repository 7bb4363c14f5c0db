//! Where messages come from: the source, and what to do when it fails, and messages that were
//! requeued.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use tokio::time::{Instant, sleep_until, timeout};

use super::{Closed, requeued::Requeued};
use crate::{Delivery, Source, TransportError, panics::unwinding, telemetry};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Less than a consumer waits for the close of its source.
const REQUEUED_CLOSED_WITHIN: Duration = Duration::from_secs(3);

/// What the worker that has the turn fetches from.
pub(super) struct Intake<S> {
    patient: Patient<S>,
    requeued: Requeued,
}

impl<S: Source> Intake<S> {
    pub(super) fn new(source: S, requeued: Requeued) -> Self {
        Self {
            patient: Patient::new(source),
            requeued,
        }
    }

    /// Waits for the next delivery; `None` when the source will never have one again. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Delivery> {
        // In random order, so that a source that always has messages does not keep requeued ones
        // waiting.
        tokio::select! {
            delivery = self.patient.next() => delivery,
            delivery = self.requeued.next() => Some(delivery),
        }
    }

    /// Returns what was fetched ahead.
    pub(super) async fn close(&mut self) -> Closed {
        let source = async {
            unwinding(self.patient.source.close())
                .await
                .unwrap_or_else(|_| {
                    tracing::warn!("the source panicked when it was closed");
                    Closed::default()
                })
        };
        // Neither waits for the other: the database may be away, and the broker not. What the
        // source has returned by then must not be lost with a silent database.
        let requeued = timeout(REQUEUED_CLOSED_WITHIN, self.requeued.close());
        let (mut closed, requeued) = tokio::join!(source, requeued);
        match requeued {
            Ok(returned) => closed.returned += returned,
            Err(_) => tracing::debug!(
                "the database does not take requeued messages back: their leases end"
            ),
        }
        closed
    }

    pub(super) fn has_ended(&self) -> bool {
        self.patient.has_ended
    }

    /// The error of the source that no delivery has followed.
    pub(super) fn take_last_error(&mut self) -> Option<TransportError> {
        self.patient.last_error.take()
    }
}

/// A source that is asked again, later each time, when it fails.
struct Patient<S> {
    source: S,
    pauses: ExponentialBackoff,
    not_before: Option<Instant>,
    has_ended: bool,
    /// Of the source, since its last delivery.
    last_error: Option<TransportError>,
}

impl<S: Source> Patient<S> {
    fn new(source: S) -> Self {
        Self {
            source,
            pauses: growing(FIRST_PAUSE, LONGEST_PAUSE),
            not_before: None,
            has_ended: false,
            last_error: None,
        }
    }

    /// Waits for the next delivery, through failures; `None` when there will never be one again.
    /// Cancel safe.
    async fn next(&mut self) -> Option<Delivery> {
        while !self.has_ended {
            if let Some(not_before) = self.not_before {
                sleep_until(not_before).await;
                self.not_before = None;
            }
            let answer = unwinding(self.source.next())
                .await
                .unwrap_or_else(|panic| Err(panic.into()));
            match answer {
                Ok(Some(delivery)) => {
                    self.pauses = growing(FIRST_PAUSE, LONGEST_PAUSE);
                    self.last_error = None;
                    return Some(delivery);
                }
                Ok(None) => self.has_ended = true,
                Err(error) => {
                    let pause = self.pauses.next().unwrap_or(LONGEST_PAUSE);
                    let cause: &dyn std::error::Error = &*error;
                    tracing::warn!(
                        error = cause,
                        ?pause,
                        "the source failed, and is asked again"
                    );
                    telemetry::source_failed();
                    self.not_before = Some(Instant::now() + pause);
                    self.last_error = Some(error);
                }
            }
        }
        None
    }
}

/// Pauses without end: each is twice the one before, up to the longest, plus jitter of up to as
/// much again.
pub(super) fn growing(first: Duration, longest: Duration) -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(first)
        .with_max_delay(longest)
        .without_max_times()
        .with_jitter()
        .build()
}
