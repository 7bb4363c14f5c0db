//! Policies, which define how the messages of a destination are processed.

mod check;
mod identity;
mod pattern;
mod pointer;
mod policies;
mod table;

use std::time::Duration;

use backon::ExponentialBuilder;

pub use check::{LONGEST_LEASE, SHORTEST_LEASE};
pub use identity::{IdFunction, IdStrategy, MissingId};
pub use policies::Policies;
pub(crate) use {
    check::{check_checked, check_leased},
    table::{Entry, Table},
};

/// The policy for the messages of one destination, or of all destinations with a common prefix.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Policy {
    /// When the claim is made.
    pub style: Style,
    /// Where the id of a message comes from.
    pub id: IdStrategy,
    /// What to do with a message that has no id.
    pub missing_id: MissingId,
    /// What to do with a duplicate, besides acknowledging it.
    pub on_duplicate: OnDuplicate,
    /// Where processed messages are remembered.
    pub store: Store,
    /// The largest number of messages that [`Store::Memory`] remembers. Beyond that, the least
    /// recently used message is forgotten. All destinations of one rule share this capacity.
    pub memory_capacity: u64,
    /// How long [`Store::Memory`] remembers a message, at most ten years; one hour by default.
    pub memory_ttl: Duration,
    /// Whether to wait for another transaction that is processing the same message. Otherwise the
    /// message is redelivered later.
    pub wait: bool,
    /// Whether a hash of the payload is stored with the claim, so that another payload under the
    /// same id is rejected.
    pub fingerprint: bool,
    /// Whether messages that were sent before the start of the retained period are rejected.
    pub expire: bool,
    /// The isolation level of the transaction.
    pub isolation: Isolation,
    /// The duration of a lease, 100 milliseconds to one day. The lease is renewed while its handler
    /// runs. If the consumer is killed, the message is redelivered when the lease expires.
    pub lease: Duration,
    /// Whether the database counts the attempts at messages that the broker redelivers, or that
    /// come from a broker without a delivery count. Then an attempt that crashes its consumer is
    /// counted too, and the message becomes a dead letter when its attempts are used up. Each of
    /// these messages costs one more transaction, and at times a second connection while the
    /// handler holds its connection.
    pub count_attempts: bool,
    /// How conflicts and lost connections are retried before the message is returned to its broker.
    pub retry: Retry,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            style: Style::Eager,
            id: IdStrategy::MessageId,
            missing_id: MissingId::Reject,
            on_duplicate: OnDuplicate::Acknowledge,
            store: Store::Database,
            memory_capacity: 100_000,
            memory_ttl: Duration::from_secs(3600),
            wait: true,
            fingerprint: false,
            expire: false,
            isolation: Isolation::Default,
            lease: Duration::from_secs(30),
            count_attempts: false,
            retry: Retry::default(),
        }
    }
}

/// When the claim is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Style {
    /// Before the handler: the handler does not run for a duplicate.
    Eager,
    /// At the end, together with the effects: for cheap handlers that rarely get duplicates. The
    /// work of the handler for a duplicate is rolled back.
    Reactive,
}

/// What to do with a duplicate, besides acknowledging it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnDuplicate {
    /// Nothing.
    Acknowledge,
    /// Write a log message at level INFO.
    Log,
    /// Read the recorded effects and pass them to the callback, and to the caller in
    /// `Processed::Duplicate`.
    Effects,
}

/// Where processed messages are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Store {
    /// In the database: each message takes effect exactly once.
    Database,
    /// In the memory of this process. A message may be processed again after the process has ended,
    /// and after an ambiguous commit. The handler still gets a transaction, which also commits its
    /// effects.
    Memory,
}

/// The isolation level of the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isolation {
    /// The default of the session.
    Default,
    /// READ COMMITTED.
    ReadCommitted,
    /// REPEATABLE READ.
    RepeatableRead,
    /// SERIALIZABLE.
    Serializable,
}

/// How conflicts and lost connections are retried.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Retry {
    /// The largest number of attempts, including the first one.
    pub max_attempts: u32,
    /// The first delay. Each later delay is twice as long, with jitter.
    pub base: Duration,
    /// The longest delay.
    pub cap: Duration,
}

impl Retry {
    /// Returns the back-off between attempts. Half of each delay grows exponentially and the other
    /// half is random, so that two transactions that conflicted are not retried at the same time.
    pub(crate) fn backoff(&self) -> ExponentialBuilder {
        ExponentialBuilder::new()
            .with_min_delay(self.base / 2)
            .with_max_delay(self.cap / 2)
            .with_max_times(self.max_attempts.saturating_sub(1) as usize)
            .with_jitter()
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max_attempts: 5,
            base: Duration::from_millis(20),
            cap: Duration::from_secs(2),
        }
    }
}
