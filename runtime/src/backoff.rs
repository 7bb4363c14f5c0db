//! Exponential back-off: each pause is about twice as long as the one before, with jitter, up to a
//! cap.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

/// A back-off that never gives up. The pauses grow up to the cap, until the next reset.
#[derive(Debug)]
pub(crate) struct Backoff {
    first: ExponentialBuilder,
    left: ExponentialBackoff,
    cap: Duration,
}

impl Backoff {
    pub(crate) fn new(base: Duration, cap: Duration) -> Self {
        // A pause of zero would be a busy loop, and a pause of years could overflow.
        let cap = cap.clamp(Duration::from_millis(1), Duration::from_secs(24 * 3600));
        let first = ExponentialBuilder::new()
            .with_min_delay(base.clamp(Duration::from_millis(1), cap))
            .with_max_delay(cap)
            .without_max_times()
            .with_jitter();
        Self {
            left: first.build(),
            first,
            cap,
        }
    }

    pub(crate) fn next(&mut self) -> Duration {
        self.left.next().unwrap_or(self.cap)
    }

    /// Starts again with the first pause, after a success.
    pub(crate) fn reset(&mut self) {
        self.left = self.first.build();
    }

    /// Returns the pause after this number of failures (1 or more).
    pub(crate) fn after(base: Duration, cap: Duration, failures: u32) -> Duration {
        // After 63 doublings every cap is reached.
        let skipped = failures.saturating_sub(1).min(63);
        let mut backoff = Self::new(base, cap);
        for _ in 0..skipped {
            backoff.next();
        }
        backoff.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pauses grow up to the cap and start again after a reset, also for extreme arguments.
    #[test]
    fn pauses_grow_to_the_cap_and_reset() {
        let (base, cap) = (Duration::from_millis(100), Duration::from_secs(1));
        let mut backoff = Backoff::new(base, cap);
        for n in 1..=200 {
            let pause = backoff.next();
            assert!(pause >= base && pause <= cap * 2, "pause {n} is {pause:?}");
            assert!(n < 5 || pause >= cap, "pause {n} is {pause:?}");
        }
        backoff.reset();
        assert!(backoff.next() <= base * 2);
        assert!(Backoff::after(base, cap, 1) <= base * 2);
        assert!(Backoff::after(base, cap, u32::MAX) >= cap);
        assert!(Backoff::after(Duration::ZERO, cap, 1) > Duration::ZERO);
    }
}
