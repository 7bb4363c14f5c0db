//! Fetches the messages of a consumer: from its source, with a back-off after failures, and from
//! the inboxes of requeued messages.

use std::time::Duration;

use tokio::time::timeout;

use super::{Closed, requeued::Requeued, retrying::RetryingSource};
use crate::{Delivery, Source, backoff::Backoff, panics::unwinding, transport::TransportError};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The longest time that closing the requeued inboxes may take. It is shorter than the consumer's
/// limit for closing the whole intake.
const REQUEUED_CLOSED_WITHIN: Duration = Duration::from_secs(3);

/// The source and the requeued messages. The worker that holds the lock on the intake fetches from
/// them.
pub(super) struct Intake<S> {
    patient: RetryingSource<S>,
    requeued: Requeued,
}

impl<S: Source> Intake<S> {
    pub(super) fn new(source: S, requeued: Requeued) -> Self {
        Self {
            patient: RetryingSource::new(source, None, Backoff::new(FIRST_PAUSE, LONGEST_PAUSE)),
            requeued,
        }
    }

    /// Waits for the next delivery. Returns `None` when the source has ended. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Delivery> {
        // `select!` polls in random order, so requeued messages are also read while the source
        // always has messages.
        tokio::select! {
            delivery = self.patient.next() => delivery,
            delivery = self.requeued.next() => Some(delivery),
        }
    }

    /// Closes the source and the inboxes, which return their prefetched messages.
    pub(super) async fn close(&mut self) -> Closed {
        let source = async {
            unwinding(self.patient.source.close())
                .await
                .unwrap_or_else(|_| {
                    tracing::warn!("the source panicked when it was closed");
                    Closed::default()
                })
        };
        // Close both at the same time, with a limit for the inboxes. So if the database does not
        // respond, the messages that the source has returned are still counted.
        let requeued = timeout(REQUEUED_CLOSED_WITHIN, self.requeued.close());
        let (mut closed, requeued) = tokio::join!(source, requeued);
        match requeued {
            Ok(returned) => closed.returned += returned,
            Err(_) => tracing::debug!(
                "cannot return requeued messages to the database: \
                 they stay leased until their leases expire"
            ),
        }
        closed
    }

    pub(super) fn has_ended(&self) -> bool {
        self.patient.has_ended
    }

    /// Takes the last error of the source, if no delivery followed it.
    pub(super) fn take_last_error(&mut self) -> Option<TransportError> {
        self.patient.last_error.take()
    }
}
