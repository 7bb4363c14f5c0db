//! What a consumer has done.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What became of the messages of one [`run`](crate::Consumer::run).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Handled and committed.
    pub handled: u64,
    /// Handled or put into the database's dead letters before, and acknowledged.
    pub duplicates: u64,
    /// Acknowledged by a filter, unhandled.
    pub stopped: u64,
    /// Failed attempts after which the message comes again: from its broker or, where order is
    /// kept, in place.
    pub retried: u64,
    /// Refused, or put into the database's dead letters.
    pub rejected: u64,
    /// Given back through no fault of their own: the database was away, a commit was ambiguous, the
    /// consumer was stopped.
    pub given_back: u64,
    /// Fetched ahead by the source, never taken from it, and returned when it was closed. What the
    /// consumer had taken from the source and gave back is in `given_back`.
    pub returned: u64,
    /// Settlements that the broker did not confirm: these messages may come again, and are
    /// duplicates if they took effect. A last delivery that could not be kept at a stop may not
    /// come again.
    pub failed_settlements: u64,
}

/// What can become of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Handled,
    Duplicate,
    Stopped,
    Retried,
    Rejected,
    GivenBack,
}

/// The summary while it grows.
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
    pub(super) fn count(&self, outcome: Outcome) {
        let counter = match outcome {
            Outcome::Handled => &self.handled,
            Outcome::Duplicate => &self.duplicates,
            Outcome::Stopped => &self.stopped,
            Outcome::Retried => &self.retried,
            Outcome::Rejected => &self.rejected,
            Outcome::GivenBack => &self.given_back,
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
