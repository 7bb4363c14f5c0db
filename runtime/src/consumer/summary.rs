//! The counts of what a consumer has done.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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

/// The counters behind a [`Summary`].
#[derive(Debug, Default)]
pub(super) struct Counters {
    handled: AtomicU64,
    duplicates: AtomicU64,
    stopped: AtomicU64,
    retried: AtomicU64,
    rejected: AtomicU64,
    given_back: AtomicU64,
    returned: AtomicU64,
    failed_settlements: AtomicU64,
}

impl Counters {
    pub(super) fn count(&self, outcome: DeliveryOutcome) {
        let counter = match outcome {
            DeliveryOutcome::Handled => &self.handled,
            DeliveryOutcome::Duplicate => &self.duplicates,
            DeliveryOutcome::Stopped => &self.stopped,
            DeliveryOutcome::Retried => &self.retried,
            DeliveryOutcome::Rejected => &self.rejected,
            DeliveryOutcome::GivenBack => &self.given_back,
        };
        counter.fetch_add(1, Relaxed);
    }

    pub(super) fn failed_settlements(&self, count: u64) {
        self.failed_settlements.fetch_add(count, Relaxed);
    }

    pub(super) fn returned(&self, count: u64) {
        self.returned.fetch_add(count, Relaxed);
    }

    pub(super) fn summary(&self) -> Summary {
        Summary {
            handled: self.handled.load(Relaxed),
            duplicates: self.duplicates.load(Relaxed),
            stopped: self.stopped.load(Relaxed),
            retried: self.retried.load(Relaxed),
            rejected: self.rejected.load(Relaxed),
            given_back: self.given_back.load(Relaxed),
            returned: self.returned.load(Relaxed),
            failed_settlements: self.failed_settlements.load(Relaxed),
        }
    }
}
