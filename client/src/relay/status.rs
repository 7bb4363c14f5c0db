//! What a relay does at the moment, and what it has done.

use std::time::SystemTime;

use tokio::sync::watch;

/// How a relay fares: see [`Relay::status`](crate::Relay::status).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayStatus {
    /// Whether its last step in the database succeeded. False before the first.
    pub database: bool,
    /// Whether the broker answered when it was last asked. `None` as long as there was nothing to publish.
    pub broker: Option<bool>,
    /// How many effects the broker has confirmed, those that came again included.
    pub published: u64,
    /// How many effects were parked.
    pub parked: u64,
    /// When the broker last confirmed an effect.
    pub last_published_at: Option<SystemTime>,
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

    pub(super) fn database(&self, answers: bool) {
        self.0
            .send_if_modified(|status| std::mem::replace(&mut status.database, answers) != answers);
    }

    pub(super) fn broker(&self, answers: bool) {
        self.0
            .send_if_modified(|status| status.broker.replace(answers) != Some(answers));
    }

    pub(super) fn published(&self) {
        self.0.send_modify(|status| {
            status.broker = Some(true);
            status.published += 1;
            status.last_published_at = Some(SystemTime::now());
        });
    }

    pub(super) fn parked(&self) {
        self.0.send_modify(|status| status.parked += 1);
    }
}
