//! Which messages are about: a window that moves with time.

use std::time::{Duration, Instant};

use rand::{Rng, RngExt};

/// Messages are born at a steady rate and are redelivered for a while. That while is longer than the retention: some are
/// claimed again after they were forgotten, most are duplicates.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    began: Instant,
    births_per_second: f64,
    redelivered_for: Duration,
}

impl Window {
    /// A window that begins to move now.
    pub fn new(births_per_second: f64, redelivered_for: Duration) -> Self {
        Self {
            began: Instant::now(),
            births_per_second,
            redelivered_for,
        }
    }

    /// Some messages, in their order: two transactions that take their locks in one order do not deadlock.
    pub fn draw(&self, count: usize, rng: &mut impl Rng) -> Vec<i64> {
        let youngest = self.began.elapsed().as_secs_f64() * self.births_per_second;
        let age = self.redelivered_for.as_secs_f64() * self.births_per_second;
        let mut drawn: Vec<i64> = (0..count)
            .map(|_| {
                // Half of them fresh, so that clients meet at the same message.
                let share: f64 = rng.random();
                let share = if rng.random_bool(0.5) { share * 0.05 } else { share };
                (youngest - age * share) as i64
            })
            .collect();
        drawn.sort_unstable();
        drawn.dedup();
        drawn
    }
}
