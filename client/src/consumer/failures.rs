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
    /// Deliveries that were no failures.
    excused: Cache<u64, Excused>,
    max_deliveries: u32,
    first_pause: Duration,
    longest_pause: Duration,
}

/// The deliveries of one message that were no failures. Some brokers count a message that was released, others do not; the next
/// delivery tells.
#[derive(Clone, Copy, Default)]
struct Excused {
    /// So many of them the broker has counted.
    counted: u32,
    /// The number of the last delivery that was no failure, until the next delivery.
    last: Option<u32>,
}

impl Excused {
    /// A delivery with this number has come.
    fn delivered(self, deliveries: u32) -> Self {
        let is_counted = self.last.is_some_and(|last| deliveries > last);
        Self {
            counted: self.counted.saturating_add(u32::from(is_counted)),
            last: None,
        }
    }
}

impl Failures {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            failed: remembering(),
            excused: remembering(),
            max_deliveries: settings.max_deliveries,
            first_pause: settings.first_pause,
            longest_pause: settings.longest_pause,
        }
    }

    /// Takes down one more, and answers how long to wait before the next attempt; `None` when there shall be none.
    pub(super) fn count(&self, held: &mut Held) -> Option<Duration> {
        let identity = identity(&held.message);
        let failed = update(&self.failed, identity, |before| before.unwrap_or(0).saturating_add(1));
        let failures = match held.message.deliveries() {
            Some(deliveries) => deliveries
                .saturating_sub(self.excused(identity, deliveries))
                .saturating_add(held.repeats),
            None => failed,
        };
        held.repeats = held.repeats.saturating_add(1);
        (failures < self.max_deliveries).then(|| self.pause(failures))
    }

    /// It goes back to its broker, and has not failed.
    pub(super) fn excuse(&self, message: &Message) {
        if let Some(deliveries) = message.deliveries() {
            update(&self.excused, identity(message), |before| Excused {
                last: Some(deliveries),
                ..before.unwrap_or_default().delivered(deliveries)
            });
        }
    }

    /// How many of so many deliveries were no failures, as far as the broker counts those.
    fn excused(&self, identity: u64, deliveries: u32) -> u32 {
        if !self.excused.contains_key(&identity) {
            return 0;
        }
        update(&self.excused, identity, |before| {
            before.unwrap_or_default().delivered(deliveries)
        })
        .counted
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

fn remembering<V: Clone + Send + Sync + 'static>() -> Cache<u64, V> {
    Cache::builder().max_capacity(REMEMBERED).time_to_idle(REMEMBERED_FOR).build()
}

/// Replaces the value of a message, and returns the new one.
fn update<V: Clone + Send + Sync + 'static>(cache: &Cache<u64, V>, identity: u64, next: impl FnOnce(Option<V>) -> V) -> V {
    cache
        .entry(identity)
        .and_upsert_with(|before| next(before.map(|entry| entry.into_value())))
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
