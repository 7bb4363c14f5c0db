//! The current status of a relay, and the summary of what it has done.

/// The status of a relay: see [`Relay::status`](crate::Relay::status).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayStatus {
    /// Whether the last statement in the database succeeded. False before the first statement.
    pub database: bool,
    /// The error of the last statement. `None` if it succeeded.
    pub database_error: Option<String>,
    /// Whether the broker replied at the last attempt. `None` while there was nothing to publish,
    /// and after another process has taken over the effects that waited for an unavailable broker.
    pub broker: Option<bool>,
    /// Why the broker did not reply, or what it lacks although it replied, such as an exchange.
    pub broker_error: Option<String>,
    /// The topics with effects that wait, ordered by name, at most 100.
    pub unavailable: Vec<UnavailableTopic>,
    /// The number of topics with effects that wait, including topics that `unavailable` does not
    /// contain.
    pub unavailable_topics: usize,
    /// The number of effects that the broker has confirmed. An effect that was published twice
    /// counts twice.
    pub published: u64,
    /// The number of effects that were parked.
    pub parked: u64,
}

/// A topic that the broker has no place for, or does not allow to publish to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnavailableTopic {
    /// The topic.
    pub topic: String,
    /// Why the topic was unavailable at the first attempt.
    pub reason: String,
}

/// The summary of a relay from its start to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelaySummary {
    /// The number of effects that the broker has confirmed. An effect that was published twice
    /// counts twice.
    pub published: u64,
    /// The number of effects that were parked.
    pub parked: u64,
}
