//! The messages that are in use: a window that moves with the deliveries of the clients.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use idem_testkit::ring::SEALED;
use rand::{Rng, RngExt};

/// The mean number of deliveries of a message.
const DELIVERIES: f64 = 6.0;
/// The share of the youngest messages. They receive half of the deliveries, so that several clients
/// often claim the same message at the same time.
const YOUNGEST: f64 = 0.1;

/// The window of messages that are delivered. The number of new messages grows with the number of
/// deliveries, and every message is redelivered for a time that is longer than the retention. Some
/// messages are therefore claimed again after they were forgotten, and most deliveries are
/// duplicates.
#[derive(Debug)]
pub struct Window {
    began: Instant,
    delivered: AtomicU64,
    /// The time during which a message is redelivered, in microseconds.
    redelivered_for: AtomicU64,
}

/// The number of rotations after which a claim is certainly forgotten, with a margin.
const PERIODS: u32 = 2 * SEALED as u32;

impl Window {
    /// Creates a window that begins to move with the first delivery.
    pub fn new(redelivered_for: Duration) -> Self {
        Self {
            began: Instant::now(),
            delivered: AtomicU64::new(0),
            redelivered_for: AtomicU64::new(micros(redelivered_for)),
        }
    }

    /// Adapts the window to the measured time between two rotations of the ring. On a busy machine
    /// this time is longer than scheduled. Messages must then be redelivered for longer, so that
    /// some are claimed again after they were forgotten.
    pub fn follow(&self, period: Duration) {
        self.redelivered_for
            .fetch_max(micros(period * PERIODS), Ordering::Relaxed);
    }

    /// Returns at most `count` messages in ascending order: two transactions that take their locks
    /// in the same order do not deadlock.
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
