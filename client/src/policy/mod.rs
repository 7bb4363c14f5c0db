//! How a destination wants its messages processed.

mod check;
mod identity;
mod pointer;
mod policies;
mod rule;
mod table;

use std::time::Duration;

use serde::Deserialize;

pub use identity::{IdFunction, IdStrategy, MissingId};
pub use policies::Policies;
pub use rule::Rule;
pub(crate) use {
    check::{LONGEST_LEASE, SHORTEST_LEASE, check_capacity, check_leased, check_time_to_live},
    table::{Entry, Table},
};

/// What holds for the messages of one destination, or of all whose names begin alike.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Policy {
    /// When the claim is made.
    pub style: Style,
    /// Where the id of a message comes from.
    pub id: IdStrategy,
    /// What to do with a message that has none.
    pub missing_id: MissingId,
    /// What to do about a duplicate, besides acknowledging it.
    pub on_duplicate: OnDuplicate,
    /// Where it is remembered what was handled.
    pub store: Store,
    /// How long it is remembered; `None` leaves it as the database has it.
    /// [`Idem::configure`](crate::Idem::configure) tells the database.
    pub retention: Option<Duration>,
    /// How many messages [`Store::Memory`] remembers; beyond that the one that was not asked for
    /// longest is forgotten.
    pub memory_capacity: u64,
    /// How long [`Store::Memory`] remembers; the retention unless given, and one hour without that.
    pub memory_ttl: Option<Duration>,
    /// Whether to wait for another transaction that is just handling the same message. Otherwise it
    /// comes again later.
    pub wait: bool,
    /// Whether a hash of the payload is kept with the claim, so that another payload under the same
    /// id is refused.
    pub fingerprint: bool,
    /// Whether messages are refused that were sent before everything that is remembered.
    pub expire: bool,
    /// The isolation level of the transaction.
    pub isolation: Isolation,
    /// How long a message is leased at a time; the lease is renewed while its handler works.
    pub lease: Duration,
    /// Whether the database counts the attempts at messages that their broker delivers again: so
    /// one that kills its consumer is counted too, and is put into the dead letters when its
    /// attempts are used up.
    pub count_attempts: bool,
    /// How conflicts and lost connections are retried before the message goes back to its broker.
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
            retention: None,
            memory_capacity: 100_000,
            memory_ttl: None,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Style {
    /// First: a duplicate costs no work.
    Eager,
    /// At the end, together with the effects: for cheap handlers that rarely see duplicates. A
    /// duplicate rolls the work back.
    Reactive,
    /// Never: what another handler of this destination has claimed is skipped, and nothing is
    /// claimed.
    CheckOnly,
}

/// What to do about a duplicate, besides acknowledging it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum OnDuplicate {
    /// Nothing.
    Acknowledge,
    /// A line in the log, at level INFO.
    Log,
    /// The recorded effects are read and handed to the callback, and to the caller in
    /// `Processed::Duplicate`.
    Effects,
}

/// Where it is remembered what was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Store {
    /// In the database, exactly once.
    Database,
    /// In this process, as long as it lives: for handlers where losing the memory does no harm. The
    /// handler still gets a transaction, and its effects go out with it.
    Memory,
}

/// The isolation level of the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Isolation {
    /// As the session has it.
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
    /// Attempts in all, the first one included.
    pub max_attempts: u32,
    /// The first pause; each later one is twice as long, with jitter.
    pub base: Duration,
    /// No pause is longer.
    pub cap: Duration,
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
