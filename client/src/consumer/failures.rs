//! How often a message has failed.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use moka::sync::Cache;

use super::{builder::Settings, intake::growing, queue::Held};
use crate::Message;

/// Of so many messages it is counted here what their broker does not count.
const REMEMBERED: u64 = 10_000;
const REMEMBERED_FOR: Duration = Duration::from_secs(3600);

/// Counts failed deliveries: the broker's own count is kept through restarts and across processes; where it has none, this
/// process counts.
pub(super) struct Failures {
    /// Failures that this process has seen: a broker may count the first delivery of a message, and none after it.
    failed: Cache<u64, u32>,
    /// Deliveries that were no failures. Most brokers count them.
    excused: Cache<u64, u32>,
    /// Rejections that could not be kept.
    unkept: Cache<u64, u32>,
    max_deliveries: u32,
    first_pause: Duration,
    longest_pause: Duration,
}

impl Failures {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            failed: remembering(),
            excused: remembering(),
            unkept: remembering(),
            max_deliveries: settings.max_deliveries,
            first_pause: settings.first_pause,
            longest_pause: settings.longest_pause,
        }
    }

    /// Takes down one more, and answers how long to wait before the next attempt; `None` when there shall be none.
    pub(super) fn count(&self, held: &mut Held) -> Option<Duration> {
        let identity = identity(&held.message);
        let failed = one_more(&self.failed, identity);
        let failures = match held.message.deliveries() {
            Some(deliveries) => deliveries
                .saturating_sub(self.excused(held, identity))
                .saturating_add(held.repeats),
            None => failed,
        };
        held.repeats = held.repeats.saturating_add(1);
        (failures < self.max_deliveries).then(|| self.pause(failures))
    }

    /// It goes back to its broker, and has not failed.
    pub(super) fn excuse(&self, message: &Message) {
        if message.deliveries().is_some() {
            one_more(&self.excused, identity(message));
        }
    }

    /// How many deliveries were no failures, and yet the broker has counted them.
    fn excused(&self, held: &Held, identity: u64) -> u32 {
        if held.receipt.counts_releases() {
            self.excused.get(&identity).unwrap_or(0)
        } else {
            0
        }
    }

    /// It has ended one way or the other.
    pub(super) fn forget(&self, held: &Held) {
        // Most have never failed, and to hash a payload takes its time.
        let is_first = held.message.deliveries() == Some(1) && held.repeats == 0;
        if !is_first && self.failed.entry_count() + self.excused.entry_count() > 0 {
            let identity = identity(&held.message);
            self.failed.invalidate(&identity);
            self.excused.invalidate(&identity);
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
        // Doubling is over long before: `nth` shall not loop through a number that a broker made up.
        let n = failures.clamp(1, 64) as usize - 1;
        growing(self.first_pause, self.longest_pause)
            .nth(n)
            .unwrap_or(self.longest_pause)
    }
}

fn remembering() -> Cache<u64, u32> {
    Cache::builder().max_capacity(REMEMBERED).time_to_idle(REMEMBERED_FOR).build()
}

fn one_more(cache: &Cache<u64, u32>, identity: u64) -> u32 {
    cache
        .entry(identity)
        .and_upsert_with(|before| before.map_or(1, |entry| entry.into_value().saturating_add(1)))
        .into_value()
}

/// The same at every delivery of one message, and different for another one.
fn identity(message: &Message) -> u64 {
    let mut hash = DefaultHasher::new();
    message.topic().hash(&mut hash);
    message.message_id().hash(&mut hash);
    message.correlation_id().hash(&mut hash);
    message.key().hash(&mut hash);
    message.coordinates().hash(&mut hash);
    message.payload().hash(&mut hash);
    hash.finish()
}
