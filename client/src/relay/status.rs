//! What a relay does at the moment, and what it has done.

use std::time::SystemTime;

use tokio::sync::watch;

use super::troubles::Troubles;

/// How many topics that are not available the status names.
const MOST_TOPICS: usize = 100;

/// How a relay fares: see [`Relay::status`](crate::Relay::status).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayStatus {
    /// Whether its last step in the database succeeded. False before the first.
    pub database: bool,
    /// Why that step failed.
    pub database_error: Option<String>,
    /// Whether the broker answered when it was last asked. `None` as long as there was nothing to
    /// publish, and after another process has taken over what waited for a broker that was away.
    pub broker: Option<bool>,
    /// Why it did not. Or what it lacks, such as an exchange, although it answered.
    pub broker_error: Option<String>,
    /// Topics whose effects wait, in the order of their names: at most 100.
    pub unavailable: Vec<UnavailableTopic>,
    /// How many topics have effects that wait, also those that `unavailable` does not name.
    pub unavailable_topics: usize,
    /// How many effects the broker has confirmed, those that came again included.
    pub published: u64,
    /// How many effects were parked.
    pub parked: u64,
    /// When the broker last confirmed an effect.
    pub last_published_at: Option<SystemTime>,
}

/// A topic that the broker has no place for, or refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnavailableTopic {
    /// The topic.
    pub topic: String,
    /// Why it was not available at the first attempt.
    pub reason: String,
}

/// What a relay has done from its start to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelaySummary {
    /// How many effects the broker has confirmed, those that came again included.
    pub published: u64,
    /// How many effects were parked.
    pub parked: u64,
}

/// Where all partitions of one process write their state.
#[derive(Clone, Debug)]
pub(super) struct Status(watch::Sender<RelayStatus>);

impl Status {
    pub(super) fn new() -> Self {
        Self(watch::Sender::default())
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<RelayStatus> {
        self.0.subscribe()
    }

    pub(super) fn summary(&self) -> RelaySummary {
        let now = self.0.borrow();
        RelaySummary {
            published: now.published,
            parked: now.parked,
        }
    }

    pub(super) fn database(&self, error: Option<&str>) {
        self.0.send_if_modified(|status| {
            let before = (status.database, status.database_error.take());
            status.database = error.is_none();
            status.database_error = error.map(str::to_owned);
            before != (status.database, status.database_error.clone())
        });
    }

    pub(super) fn broker(&self, error: Option<&str>) {
        self.0.send_if_modified(|status| {
            let before = (status.broker, status.broker_error.take());
            status.broker = Some(error.is_none());
            status.broker_error = error.map(str::to_owned);
            before != (status.broker, status.broker_error.clone())
        });
    }

    /// The broker answered, and lacks what the publisher needs.
    pub(super) fn broker_lacks(&self, reason: &str) {
        self.0.send_if_modified(|status| {
            let before = (
                status.broker,
                status.broker_error.replace(reason.to_owned()),
            );
            status.broker = Some(true);
            before != (status.broker, status.broker_error.clone())
        });
    }

    /// What is known of the broker is out of date.
    pub(super) fn broker_is_unknown(&self) {
        self.0
            .send_modify(|status| (status.broker, status.broker_error) = (None, None));
    }

    pub(super) fn topics(&self, troubles: &Troubles) {
        self.0.send_modify(|status| {
            let topics = troubles.topics().take(MOST_TOPICS);
            let topics = topics.map(|(topic, reason)| UnavailableTopic {
                topic: topic.to_owned(),
                reason: reason.to_owned(),
            });
            status.unavailable = topics.collect();
            status.unavailable_topics = troubles.topics().count();
        });
    }

    pub(super) fn published(&self) {
        self.0.send_modify(|status| {
            status.published += 1;
            status.last_published_at = Some(SystemTime::now());
        });
    }

    pub(super) fn parked(&self) {
        self.0.send_modify(|status| status.parked += 1);
    }
}
