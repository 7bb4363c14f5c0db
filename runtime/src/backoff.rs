//! Exponential back-off: each pause is about twice as long as the one before, with jitter, up to a
//! cap.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

/// The first and the longest pause of a back-off, without the jitter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pauses {
    pub(crate) first: Duration,
    pub(crate) longest: Duration,
}

impl Pauses {
    pub(crate) const fn from_millis(first: u64, longest: u64) -> Self {
        Self {
            first: Duration::from_millis(first),
            longest: Duration::from_millis(longest),
        }
    }

    /// Starts a back-off with these pauses.
    pub(crate) fn start(self) -> Backoff {
        // A pause of zero would be a busy loop, and a pause of years could overflow.
        let shortest = Duration::from_millis(1);
        let longest = self.longest.clamp(shortest, Duration::from_secs(24 * 3600));
        let first = ExponentialBuilder::new()
            .with_min_delay(self.first.clamp(shortest, longest))
            .with_max_delay(longest)
            .without_max_times()
            .with_jitter();
        Backoff {
            left: first.build(),
            first,
            longest,
        }
    }

    /// Returns the pause after this number of failures (1 or more).
    pub(crate) fn after(self, failures: u32) -> Duration {
        // After 63 doublings every longest pause is reached.
        let skipped = failures.saturating_sub(1).min(63);
        let mut backoff = self.start();
        for _ in 0..skipped {
            backoff.next();
        }
        backoff.next()
    }
}

/// A back-off that never gives up. The pauses grow up to the longest one, until the next reset.
#[derive(Debug)]
pub(crate) struct Backoff {
    first: ExponentialBuilder,
    left: ExponentialBackoff,
    longest: Duration,
}

impl Backoff {
    pub(crate) fn next(&mut self) -> Duration {
        self.left.next().unwrap_or(self.longest)
    }

    /// Starts again with the first pause, after a success.
    pub(crate) fn reset(&mut self) {
        self.left = self.first.build();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pauses grow up to the longest one and start again after a reset, also for extreme arguments.
    #[test]
    fn pauses_grow_to_the_longest_and_reset() {
        let pauses = Pauses::from_millis(100, 1000);
        let Pauses { first, longest } = pauses;
        let mut backoff = pauses.start();
        for n in 1..=200 {
            let pause = backoff.next();
            assert!(
                pause >= first && pause <= longest * 2,
                "pause {n} is {pause:?}"
            );
            assert!(n < 5 || pause >= longest, "pause {n} is {pause:?}");
        }
        backoff.reset();
        assert!(backoff.next() <= first * 2);
        assert!(pauses.after(1) <= first * 2);
        assert!(pauses.after(u32::MAX) >= longest);
        assert!(Pauses::from_millis(0, 1000).after(1) > Duration::ZERO);
    }
}
