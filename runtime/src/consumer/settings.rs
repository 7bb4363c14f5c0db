//! The settings of a consumer.

use std::time::Duration;

use crate::{Error, backoff::Pauses};

#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) concurrency: usize,
    /// Whether messages of one key are handled in order. `None` means that the source decides.
    pub(super) is_ordered: Option<bool>,
    pub(super) batches: Batches,
    pub(super) max_bytes: usize,
    /// `None` means `max_bytes` divided by `concurrency`.
    pub(super) max_batch_bytes: Option<usize>,
    pub(super) max_deliveries: u32,
    /// The pauses before a failed message is retried.
    pub(super) pauses: Pauses,
    pub(super) grace: Duration,
}

/// The size of the batches. The messages of a batch share a transaction.
///
/// ```
/// use std::time::Duration;
///
/// use idem_runtime::consumer::Batches;
///
/// let batches = Batches::new(100).linger(Duration::from_millis(10));
/// assert_eq!(batches.max, 100);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Batches {
    /// The largest number of messages in a batch.
    pub max: usize,
    /// How long to wait for more messages after the first one. Default: 0.
    pub linger: Duration,
}

impl Batches {
    pub(super) const SINGLES: Self = Self::new(1);

    /// Returns batches of at most `max` messages. A batch does not wait for more messages.
    pub const fn new(max: usize) -> Self {
        Self {
            max,
            linger: Duration::ZERO,
        }
    }

    /// Sets how long to wait for more messages after the first one.
    #[must_use]
    pub const fn linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }
}

impl Settings {
    pub(super) fn max_batch_bytes(&self) -> usize {
        let share = self.max_bytes / self.concurrency.max(1);
        self.max_batch_bytes.unwrap_or(share.max(1))
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        for (number, name) in [
            (self.concurrency, "concurrency"),
            (self.batches.max, "Batches::max"),
            (self.max_bytes, "max_bytes"),
            (self.max_batch_bytes(), "max_batch_bytes"),
            (self.max_deliveries as usize, "max_deliveries"),
        ] {
            if number == 0 {
                return Err(Error::Invalid(format!("{name} must be at least 1")));
            }
        }
        Ok(())
    }
}
