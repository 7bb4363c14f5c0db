//! What a consumer has done, and the error of a consumer that ended without a requested shutdown.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The counts of messages of one [`run`](crate::Consumer::run), by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Messages that were handled and committed.
    pub handled: u64,
    /// Messages that were handled or stored as dead letters before. They were acknowledged.
    pub duplicates: u64,
    /// Messages that a filter acknowledged before they were handled.
    pub stopped: u64,
    /// Attempts after which the message is tried again: the attempt failed, the message is not due
    /// yet, or another process holds it.
    pub retried: u64,
    /// Messages that were rejected at their broker, or stored as dead letters in the database.
    pub rejected: u64,
    /// Messages that were released although they did not fail: the database was unavailable, the
    /// result of a commit was unknown, or the consumer was stopped.
    pub given_back: u64,
    /// Prefetched messages that the source returned when it was closed, because the consumer had
    /// not taken them. Messages that the consumer had taken and released are counted in
    /// `given_back`.
    pub returned: u64,
    /// Settlements that the broker did not confirm. These messages may be redelivered, and are
    /// duplicates if they were handled. There is one exception: a message near its delivery limit
    /// that could not be kept when the consumer stopped may not be redelivered.
    pub failed_settlements: u64,
}

/// An error of a broker, or of the connection to it.
pub type TransportError = Box<dyn std::error::Error + Send + Sync>;

/// The source of a [`Consumer`](crate::Consumer) delivers no more messages. All messages that the
/// source had delivered are settled.
#[derive(Debug, thiserror::Error)]
#[error("the source ended without a requested shutdown")]
#[non_exhaustive]
pub struct SourceEnded {
    /// What the consumer did until the source ended.
    pub summary: Summary,
    /// The last error of the source, if no delivery followed it.
    #[source]
    pub error: Option<TransportError>,
}

/// The result of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeliveryOutcome {
    Handled,
    Duplicate,
    Stopped,
    Retried,
    Rejected,
    GivenBack,
}

/// The counts of a run that is in progress.
#[derive(Debug, Default)]
pub(super) struct Counters(Mutex<Summary>);

impl Counters {
    fn counts(&self) -> MutexGuard<'_, Summary> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count(&self, outcome: DeliveryOutcome) {
        let mut counts = self.counts();
        let count = match outcome {
            DeliveryOutcome::Handled => &mut counts.handled,
            DeliveryOutcome::Duplicate => &mut counts.duplicates,
            DeliveryOutcome::Stopped => &mut counts.stopped,
            DeliveryOutcome::Retried => &mut counts.retried,
            DeliveryOutcome::Rejected => &mut counts.rejected,
            DeliveryOutcome::GivenBack => &mut counts.given_back,
        };
        *count += 1;
    }

    pub(super) fn failed_settlements(&self, count: u64) {
        self.counts().failed_settlements += count;
    }

    pub(super) fn returned(&self, count: u64) {
        self.counts().returned += count;
    }

    pub(super) fn summary(&self) -> Summary {
        *self.counts()
    }
}
