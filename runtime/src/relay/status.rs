//! The current status of a relay, and the summary of what it has done.

use tokio::sync::watch;

use super::outages::Outages;

/// The largest number of unavailable topics in the status.
const MOST_TOPICS: usize = 100;

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

/// The sender of the status, shared by all partitions of one process.
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

    /// Records that the broker replied, but lacks something that the publisher needs.
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

    /// Records that the state of the broker is not known any more.
    pub(super) fn broker_is_unknown(&self) {
        self.0
            .send_modify(|status| (status.broker, status.broker_error) = (None, None));
    }

    pub(super) fn topics(&self, outages: &Outages) {
        self.0.send_modify(|status| {
            let topics = outages.topics().take(MOST_TOPICS);
            let topics = topics.map(|(topic, reason)| UnavailableTopic {
                topic: topic.to_owned(),
                reason: reason.to_owned(),
            });
            status.unavailable = topics.collect();
            status.unavailable_topics = outages.topics().count();
        });
    }

    pub(super) fn published(&self) {
        self.0.send_modify(|status| status.published += 1);
    }

    pub(super) fn parked(&self) {
        self.0.send_modify(|status| status.parked += 1);
    }
}
