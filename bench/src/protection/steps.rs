//! The time of a message, by its steps.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// A step of a message that every contestant has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Until the message is claimed; without protection, until the transaction has begun.
    Claim,
    /// The business update.
    Update,
    /// The outgoing message, and the wait for COMMIT.
    Commit,
}

impl Step {
    /// All steps, in their order.
    pub const ALL: [Self; 3] = [Self::Claim, Self::Update, Self::Commit];

    /// Returns the name that a person reads.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Claim => "BEGIN, claim",
            Self::Update => "UPDATE",
            Self::Commit => "outgoing, COMMIT",
        }
    }
}

/// Measures the steps of one message.
pub struct Watch {
    start: Instant,
    /// The ends of the first two steps, in nanoseconds after the start.
    ends: [AtomicU64; 2],
}

impl Watch {
    /// Begins with the first step.
    pub fn start() -> Self {
        Self {
            start: Instant::now(),
            ends: Default::default(),
        }
    }

    /// Ends one of the first two steps.
    pub fn lap(&self, step: Step) {
        if let Some(end) = self.ends.get(step as usize) {
            end.store(self.elapsed(), Relaxed);
        }
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The sums of the times of many messages.
#[derive(Debug, Default)]
pub struct Steps {
    messages: AtomicU64,
    ns: [AtomicU64; 3],
}

impl Steps {
    /// Adds a message that is complete.
    pub fn add(&self, watch: Watch) {
        let end = watch.elapsed();
        let [claimed, updated] = watch.ends.map(AtomicU64::into_inner);
        for (sum, ns) in self
            .ns
            .iter()
            .zip([claimed, updated - claimed, end - updated])
        {
            sum.fetch_add(ns, Relaxed);
        }
        self.messages.fetch_add(1, Relaxed);
    }

    /// Returns the mean time of a message in each step, in milliseconds, and begins anew.
    pub fn take_ms(&self) -> [f64; 3] {
        let messages = self.messages.swap(0, Relaxed) as f64;
        self.ns
            .each_ref()
            .map(|sum| sum.swap(0, Relaxed) as f64 / messages / 1e6)
    }
}
