//! A source that is polled again after a failure.

use std::time::Duration;

use idem_client::Destination;
use tokio::time::{Instant, sleep_until};

use crate::{
    Delivery, Source,
    backoff::Backoff,
    panics::unwinding,
    telemetry::{self, warn_if_new},
    transport::TransportError,
};

/// A source that has waited longer than this for a message had recovered from its last failure.
const RECOVERED: Duration = Duration::from_secs(60);

/// A source that is polled again after a failure, with an exponential back-off.
pub(super) struct RetryingSource<S> {
    pub(super) source: S,
    /// The destination of an inbox of requeued messages. The source of the consumer has none.
    inbox_of: Option<Destination>,
    pauses: Backoff,
    not_before: Option<Instant>,
    pub(super) has_ended: bool,
    /// The last error of the source since its last delivery.
    pub(super) last_error: Option<TransportError>,
}

impl<S: Source> RetryingSource<S> {
    pub(super) fn new(source: S, inbox_of: Option<Destination>, pauses: Backoff) -> Self {
        Self {
            source,
            inbox_of,
            pauses,
            not_before: None,
            has_ended: false,
            last_error: None,
        }
    }

    /// Waits for the next delivery and retries after failures of the source. Returns `None` when
    /// the source has ended. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Delivery> {
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
