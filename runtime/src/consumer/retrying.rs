//! A source that is polled again after a failure.

use idem_client::Destination;
use tokio::time::{Instant, sleep_until};

use crate::{
    Delivery, Source, backoff::Backoff, panics::unwinding, telemetry, transport::TransportError,
};

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
            let result = unwinding(self.source.next())
                .await
                .unwrap_or_else(|panic| Err(panic.into()));
            match result {
                Ok(Some(delivery)) => {
                    self.pauses.reset();
                    self.last_error = None;
                    return Some(delivery);
                }
                Ok(None) => self.has_ended = true,
                Err(error) => {
                    let pause = self.pauses.next();
                    let cause: &dyn std::error::Error = &*error;
                    if let Some(destination) = self.inbox_of.as_ref().map(Destination::as_str) {
                        tracing::warn!(
                            error = cause,
                            destination,
                            ?pause,
                            "cannot read requeued messages"
                        );
                    } else {
                        tracing::warn!(error = cause, ?pause, "the source failed and is retried");
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
