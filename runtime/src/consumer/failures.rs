//! Remembers what went wrong with each message.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use moka::{Entry, ops::compute::Op, sync::Cache};
use tokio::time::Instant;

use super::{queue::QueuedMessage, settings::Settings};
use crate::{Message, backoff::Pauses};

/// The number of messages that are remembered. During an outage each message is in trouble.
const REMEMBERED: u64 = 30_000;
const REMEMBERED_FOR: Duration = Duration::from_secs(3600);
/// The longest time for which a message is remembered. The cache does not accept every duration.
const LONGEST_MEMORY: Duration = Duration::from_secs(365 * 86_400);

/// The number of times that a broker may refuse the dead letter of a message. After that the
/// database keeps the message.
const REFUSED_LETTERS: u32 = 3;

/// Counts the failures that this process has seen. The delivery count of a broker is not used if it
/// includes releases, because a release is not a failure.
pub(super) struct Failures {
    troubled: Cache<u64, Trouble>,
    /// Whether any message was ever in trouble. Until then, messages are not looked up, because
    /// hashing a payload takes time.
    has_any: AtomicBool,
    max_deliveries: u32,
    pauses: Pauses,
}

/// What went wrong with a message.
#[derive(Clone, Copy, Default)]
struct Trouble {
    /// How often the message has failed.
    failures: u32,
    /// How often neither the broker nor the database has kept the rejected message.
    unkept: u32,
    /// When the message first met a failure of the environment, or when such a failure was last
    /// counted as a failure of the message.
    suspected: Option<Instant>,
}

impl Failures {
    pub(super) fn new(settings: &Settings) -> Self {
        // Jitter can double a pause, so a message is remembered for longer than two pauses.
        let remembered_for = REMEMBERED_FOR
            .max(settings.pauses.longest.saturating_mul(4))
            .min(LONGEST_MEMORY);
        Self {
            troubled: Cache::builder()
                .max_capacity(REMEMBERED)
                .time_to_idle(remembered_for)
                .build(),
            has_any: AtomicBool::new(false),
            max_deliveries: settings.max_deliveries,
            pauses: settings.pauses,
        }
    }

    /// Counts one more failure. Returns the number of failures, and the pause before the next
    /// attempt. The pause is `None` when the message must not be retried.
    pub(super) fn count(&self, queued: &mut QueuedMessage) -> (u32, Option<Duration>) {
        let trouble = self.note(&queued.message, |trouble| {
            trouble.failures = trouble.failures.saturating_add(1);
        });
        let failures = match queued.message.deliveries() {
            // The count of the broker includes the current delivery, and failures that other
            // processes and earlier runs have seen.
            Some(deliveries) if !queued.receipt.counts_releases() => {
                deliveries.saturating_add(queued.repeats)
            }
            _ => trouble.failures,
        };
        queued.repeats = queued.repeats.saturating_add(1);
        // A message with an ordering key is retried in place and not returned to its broker, so the
        // broker's delivery limit does not apply.
        let is_last = queued.ordering_key.is_none() && queued.receipt.near_limit().is_some();
        let again = failures < self.max_deliveries && !is_last;
        (failures, again.then(|| self.pause(failures)))
    }

    /// Notes that the message met a failure of the environment: it is suspected to be the cause.
    /// Returns whether it is. This requires an earlier suspicion, for whose time `is_cause` returns
    /// true.
    pub(super) fn suspect(&self, message: &Message, is_cause: impl Fn(Instant) -> bool) -> bool {
        let mut caused = false;
        self.note(message, |trouble| {
            caused = trouble.suspected.is_some_and(is_cause);
            // After a failure that the message caused, another message must succeed before the next
            // failure counts as caused by this message too.
            if caused || trouble.suspected.is_none() {
                trouble.suspected = Some(Instant::now());
            }
        });
        caused
    }

    /// Forgets the failures of a message that is finished. How often it was not kept stays known:
    /// its broker may not confirm the rejection, and then it is not finished.
    pub(super) fn forget(&self, message: &Message) {
        if !self.has_any.load(Ordering::Relaxed) {
            return;
        }
        let entry = self.troubled.entry(identity(message));
        entry.and_compute_with(|known| match known.map(Entry::into_value) {
            None => Op::Nop,
            Some(Trouble { unkept: 0, .. }) => Op::Remove,
            Some(Trouble { unkept, .. }) => Op::Put(Trouble {
                unkept,
                ..Trouble::default()
            }),
        });
    }

    /// Returns the pause before the next attempt to store a rejected message. The pause grows with
    /// each attempt.
    pub(super) fn pause_unkept(&self, message: &Message) -> Duration {
        self.pause(self.one_more_unkept(message))
    }

    /// Counts that the broker has not confirmed the rejection of a message.
    pub(super) fn letter_is_refused(&self, message: &Message) {
        self.one_more_unkept(message);
    }

    fn one_more_unkept(&self, message: &Message) -> u32 {
        self.note(message, |trouble| {
            trouble.unkept = trouble.unkept.saturating_add(1);
        })
        .unkept
    }

    /// Returns whether the broker refuses the dead letter of a message again and again, for example
    /// because no stream takes it or because it is too large with its reason.
    pub(super) fn are_letters_refused(&self, message: &Message) -> bool {
        let known = self.troubled.get(&identity(message));
        known.is_some_and(|trouble| trouble.unkept >= REFUSED_LETTERS)
    }

    /// Returns the pause before a retry when the number of failures is not known.
    pub(super) fn first_pause(&self) -> Duration {
        self.pause(1)
    }

    fn pause(&self, failures: u32) -> Duration {
        self.pauses.after(failures)
    }

    /// Changes what is remembered of a message, and returns it.
    fn note(&self, message: &Message, change: impl FnOnce(&mut Trouble)) -> Trouble {
        self.has_any.store(true, Ordering::Relaxed);
        let noted = self
            .troubled
            .entry(identity(message))
            .and_upsert_with(|known| {
                let mut trouble = known.map(Entry::into_value).unwrap_or_default();
                change(&mut trouble);
                trouble
            });
        noted.into_value()
    }
}

/// Returns a hash that is the same at every delivery of a message. Different messages
/// almost always have different hashes.
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
