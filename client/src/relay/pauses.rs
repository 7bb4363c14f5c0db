//! Pauses between attempts: each about twice as long as the one before, with jitter, up to a cap.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

/// Longer and longer pauses, until something works.
#[derive(Debug)]
pub(crate) struct Pauses {
    first: ExponentialBuilder,
    left: ExponentialBackoff,
    cap: Duration,
}

impl Pauses {
    pub(crate) fn new(base: Duration, cap: Duration) -> Self {
        // No pause at all would be a busy loop, and one of years would be an overflow.
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

    /// It works: the next pause is a short one again.
    pub(crate) fn reset(&mut self) {
        self.left = self.first.build();
    }

    /// The pause after so many failures (from 1).
    pub(crate) fn after(base: Duration, cap: Duration, failures: u32) -> Duration {
        // 2^63 of anything is beyond any cap.
        let skipped = failures.saturating_sub(1).min(63);
        let mut pauses = Self::new(base, cap);
        for _ in 0..skipped {
            pauses.next();
        }
        pauses.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_their_cap_and_begin_anew() {
        let (base, cap) = (Duration::from_millis(100), Duration::from_secs(1));
        let mut pauses = Pauses::new(base, cap);
        for n in 1..=200 {
            let pause = pauses.next();
            assert!(pause >= base && pause <= cap * 2, "pause {n} is {pause:?}");
            assert!(n < 5 || pause >= cap, "pause {n} is {pause:?}");
        }
        pauses.reset();
        assert!(pauses.next() <= base * 2);
        assert!(Pauses::after(base, cap, 1) <= base * 2);
        assert!(Pauses::after(base, cap, u32::MAX) >= cap);
        assert!(Pauses::after(Duration::ZERO, cap, 1) > Duration::ZERO);
    }
}
