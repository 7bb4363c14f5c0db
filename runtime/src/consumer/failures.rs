//! Counts how often each message has failed.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use moka::sync::Cache;

use super::{queue::QueuedMessage, settings::Settings};
use crate::{Message, backoff::Backoff};

/// The number of messages for which failures are counted.
const REMEMBERED: u64 = 10_000;
const REMEMBERED_FOR: Duration = Duration::from_secs(3600);
/// The longest time for which a count is kept. The cache does not accept every duration.
const LONGEST_MEMORY: Duration = Duration::from_secs(365 * 86_400);

/// The number of times that a broker may refuse the dead letter of a message. After that the
/// database keeps the message.
const REFUSED_LETTERS: u32 = 3;

/// Counts the failures that this process has seen. The delivery count of a broker is not used if it
/// includes releases, because a release is not a failure.
pub(super) struct Failures {
    failed: Cache<u64, u32>,
    /// Whether a message has ever failed. Until then, messages are not looked up, because hashing a
    /// payload takes time.
    has_failed: AtomicBool,
    /// How often neither the broker nor the database has kept a rejected message.
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

    /// Counts one more failure. Returns the number of failures, and the pause before the next
    /// attempt. The pause is `None` when the message must not be retried.
    pub(super) fn count(&self, queued: &mut QueuedMessage) -> (u32, Option<Duration>) {
        self.has_failed.store(true, Ordering::Relaxed);
        let failed = one_more(&self.failed, identity(&queued.message));
        let failures = match queued.message.deliveries() {
            // The count of the broker includes the current delivery, and failures that other
            // processes and earlier runs have seen.
            Some(deliveries) if !queued.receipt.counts_releases() => {
                deliveries.saturating_add(queued.repeats)
            }
            _ => failed,
        };
        queued.repeats = queued.repeats.saturating_add(1);
        // A message with an ordering key is retried in place and not returned to its broker, so the
        // broker's delivery limit does not apply.
        let is_last = queued.ordering_key.is_none() && queued.receipt.is_near_limit();
        let again = failures < self.max_deliveries && !is_last;
        (failures, again.then(|| self.pause(failures)))
    }

    /// Forgets the failures of a message that is finished.
    pub(super) fn forget(&self, message: &Message) {
        if self.has_failed.load(Ordering::Relaxed) {
            self.failed.invalidate(&identity(message));
        }
    }

    /// Returns the pause before the next attempt to store a rejected message. The pause grows with
    /// each attempt.
    pub(super) fn pause_unkept(&self, message: &Message) -> Duration {
        self.pause(one_more(&self.unkept, identity(message)))
    }

    /// Counts that the broker has not confirmed the rejection of a message.
    pub(super) fn letter_is_refused(&self, message: &Message) {
        one_more(&self.unkept, identity(message));
    }

    /// Returns whether the broker refuses the dead letter of a message again and again, for example
    /// because no stream takes it or because it is too large with its reason.
    pub(super) fn are_letters_refused(&self, message: &Message) -> bool {
        let refused = self.unkept.get(&identity(message));
        refused.is_some_and(|times| times >= REFUSED_LETTERS)
    }

    /// Returns the pause before a retry when the number of failures is not known.
    pub(super) fn first_pause(&self) -> Duration {
        self.pause(1)
    }

    fn pause(&self, failures: u32) -> Duration {
        Backoff::after(self.first_pause, self.longest_pause, failures)
    }
}

fn remembering(longest_pause: Duration) -> Cache<u64, u32> {
    // Jitter can double a pause, so a count is kept for longer than two pauses.
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

/// Returns a hash that is the same at every delivery of a message. Different messages
/// almost always have different hashes.
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
