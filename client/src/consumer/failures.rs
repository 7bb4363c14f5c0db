//! How often a message has failed.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use moka::sync::Cache;

use super::{builder::Settings, intake::growing, queue::Held};
use crate::Message;

/// The failures of so many messages are counted here.
const REMEMBERED: u64 = 10_000;
const REMEMBERED_FOR: Duration = Duration::from_secs(3600);
/// The cache takes no longer time.
const LONGEST_MEMORY: Duration = Duration::from_secs(365 * 86_400);

/// Counts failures. A broker that also counts what was returned without a failure cannot tell them
/// apart, so this process counts what it has seen fail.
pub(super) struct Failures {
    failed: Cache<u64, u32>,
    /// Whether a message has ever failed. Most never do, and hashing a payload takes time.
    has_failed: AtomicBool,
    /// Rejections that could not be kept.
    unkept: Cache<u64, u32>,
    max_deliveries: u32,
    first_pause: Duration,
    longest_pause: Duration,
}

impl Failures {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            failed: remembering(settings.longest_pause),
            unkept: remembering(settings.longest_pause),
            has_failed: AtomicBool::new(false),
            max_deliveries: settings.max_deliveries,
            first_pause: settings.first_pause,
            longest_pause: settings.longest_pause,
        }
    }

    /// Counts one more failure. Returns how many there are, and how long to wait before the next
    /// attempt, or `None` when there shall be none.
    pub(super) fn count(&self, held: &mut Held) -> (u32, Option<Duration>) {
        self.has_failed.store(true, Ordering::Relaxed);
        let failed = one_more(&self.failed, identity(&held.message));
        let failures = match held.message.deliveries() {
            // What other processes and earlier runs saw fail, and this delivery.
            Some(deliveries) if !held.receipt.counts_releases() => {
                deliveries.saturating_add(held.repeats)
            }
            _ => failed,
        };
        held.repeats = held.repeats.saturating_add(1);
        // A message that is tried again in place is not returned.
        let is_last = held.sequence.is_none() && held.receipt.is_near_limit();
        let again = failures < self.max_deliveries && !is_last;
        (failures, again.then(|| self.pause(failures)))
    }

    /// It has ended one way or the other.
    pub(super) fn forget(&self, message: &Message) {
        if self.has_failed.load(Ordering::Relaxed) {
            self.failed.invalidate(&identity(message));
        }
    }

    /// The pause before a rejected message is tried to be kept again, longer each time.
    pub(super) fn pause_unkept(&self, message: &Message) -> Duration {
        self.pause(one_more(&self.unkept, identity(message)))
    }

    /// The pause before an attempt that this process knows nothing about.
    pub(super) fn first_pause(&self) -> Duration {
        self.pause(1)
    }

    fn pause(&self, failures: u32) -> Duration {
        // Doubling is over long before: `nth` shall not loop through a number that a broker made
        // up.
        let n = failures.clamp(1, 64) as usize - 1;
        growing(self.first_pause, self.longest_pause)
            .nth(n)
            .unwrap_or(self.longest_pause)
    }
}

fn remembering(longest_pause: Duration) -> Cache<u64, u32> {
    // Jitter doubles a pause.
    let remembered_for = REMEMBERED_FOR
        .max(longest_pause.saturating_mul(4))
        .min(LONGEST_MEMORY);
    Cache::builder()
        .max_capacity(REMEMBERED)
        .time_to_idle(remembered_for)
        .build()
}

fn one_more(cache: &Cache<u64, u32>, identity: u64) -> u32 {
    cache
        .entry(identity)
        .and_upsert_with(|before| before.map_or(1, |entry| entry.into_value().saturating_add(1)))
        .into_value()
}

/// The same at every delivery of one message, and different for another one.
pub(super) fn identity(message: &Message) -> u64 {
    let mut hash = DefaultHasher::new();
    message.topic().hash(&mut hash);
    message.message_id().hash(&mut hash);
    message.correlation_id().hash(&mut hash);
    message.key().hash(&mut hash);
    message.coordinates().hash(&mut hash);
    message.payload().hash(&mut hash);
    hash.finish()
}
