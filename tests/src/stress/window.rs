//! Which messages are about: a window that moves with what the clients manage to claim.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::{Rng, RngExt};

/// How often a message is delivered, on average.
const DELIVERIES: f64 = 6.0;
/// Half of the deliveries are of the youngest messages, so that clients meet at the same message.
const YOUNGEST: f64 = 0.1;

/// Messages are born as fast as they are delivered, and are redelivered for a while. That while is
/// longer than the retention: some are claimed again after they were forgotten, most are
/// duplicates.
#[derive(Debug)]
pub struct Window {
    began: Instant,
    delivered: AtomicU64,
    /// Microseconds.
    redelivered_for: AtomicU64,
}

/// Rotations after which a claim is certainly forgotten, with a margin: a claim is found for two to
/// three periods.
const PERIODS: u32 = 6;

impl Window {
    /// A window that begins to move with the first delivery.
    pub fn new(redelivered_for: Duration) -> Self {
        Self {
            began: Instant::now(),
            delivered: AtomicU64::new(0),
            redelivered_for: AtomicU64::new(micros(redelivered_for)),
        }
    }

    /// The ring rotates once in so much time. On a busy machine that is more than its schedule
    /// says, and messages must be redelivered for longer, or none is claimed again after it was
    /// forgotten.
    pub fn follow(&self, period: Duration) {
        self.redelivered_for
            .fetch_max(micros(period * PERIODS), Ordering::Relaxed);
    }

    /// Some messages, in their order: two transactions that take their locks in one order do not
    /// deadlock.
    pub fn draw(&self, count: usize, rng: &mut impl Rng) -> Vec<i64> {
        let delivered = self.delivered.fetch_add(count as u64, Ordering::Relaxed);
        let born = delivered as f64 / DELIVERIES;
        let births_per_second = born / self.began.elapsed().as_secs_f64();
        let redelivered_for = Duration::from_micros(self.redelivered_for.load(Ordering::Relaxed));
        let redelivered =
            (redelivered_for.as_secs_f64() * births_per_second).clamp(10.0, born.max(10.0));
        let mut drawn: Vec<i64> = (0..count)
            .map(|_| {
                let share: f64 = rng.random();
                let share = if rng.random_bool(0.5) {
                    share * YOUNGEST
                } else {
                    share
                };
                (born - redelivered * share) as i64
            })
            .collect();
        drawn.sort_unstable();
        drawn.dedup();
        drawn
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
