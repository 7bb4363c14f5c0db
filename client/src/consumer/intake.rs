//! The source, and what to do when it fails.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use tokio::time::{Instant, sleep_until};

use super::attempt::unwinding;
use crate::{Delivery, Source, telemetry};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A source that is asked again, later each time, when it fails. Whoever has it has the turn to fetch.
pub(super) struct Intake<S> {
    source: S,
    pauses: ExponentialBackoff,
    not_before: Option<Instant>,
    has_ended: bool,
}

impl<S: Source> Intake<S> {
    pub(super) fn new(source: S) -> Self {
        Self {
            source,
            pauses: growing(FIRST_PAUSE, LONGEST_PAUSE),
            not_before: None,
            has_ended: false,
        }
    }

    /// Waits for the next delivery, through failures of the source; `None` when there will never be one again. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Delivery> {
        while !self.has_ended {
            if let Some(not_before) = self.not_before {
                sleep_until(not_before).await;
                self.not_before = None;
            }
            let answer = unwinding(self.source.next()).await.unwrap_or_else(|panic| Err(panic.into()));
            match answer {
                Ok(Some(delivery)) => {
                    self.pauses = growing(FIRST_PAUSE, LONGEST_PAUSE);
                    return Some(delivery);
                }
                Ok(None) => self.has_ended = true,
                Err(error) => {
                    let pause = self.pauses.next().unwrap_or(LONGEST_PAUSE);
                    tracing::warn!(error, ?pause, "the source failed, and is asked again");
                    telemetry::source_failed();
                    self.not_before = Some(Instant::now() + pause);
                }
            }
        }
        None
    }

    /// Lets the source give back what it has fetched ahead.
    pub(super) async fn close(&mut self) {
        if unwinding(self.source.close()).await.is_err() {
            tracing::warn!("the source panicked when it was closed");
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }
}

/// Pauses without end: each is twice the one before, up to the longest, plus jitter of up to as much again.
pub(super) fn growing(first: Duration, longest: Duration) -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(first)
        .with_max_delay(longest)
        .without_max_times()
        .with_jitter()
        .build()
}
