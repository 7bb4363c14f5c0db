//! The status of a running consumer.

use std::collections::BTreeMap;

use idem_client::Destination;
use tokio::sync::watch;

use crate::telemetry;

/// The status of a consumer: see [`Consumer::status`](crate::Consumer::status).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerStatus {
    /// Whether the database has been available to this consumer. Nothing is fetched before that.
    pub has_started: bool,
    /// The database error that prevents the consumer from fetching. `None` while the consumer
    /// works.
    pub paused: Option<String>,
    /// The destinations that are paused after a failure of their environment, each with its last
    /// error. Their messages are redelivered later, and the redelivery does not count as a failure.
    pub paused_destinations: BTreeMap<String, String>,
}

impl ConsumerStatus {
    /// Returns whether the consumer has started and nothing is paused.
    pub fn is_ready(&self) -> bool {
        self.has_started && self.paused.is_none() && self.paused_destinations.is_empty()
    }
}

/// The sender of the status.
pub(super) struct Status(watch::Sender<ConsumerStatus>);

impl Status {
    pub(super) fn new() -> Self {
        Self(watch::Sender::default())
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<ConsumerStatus> {
        self.0.subscribe()
    }

    /// Changes the status. Returns what `change` returns, which is the previous value.
    fn change<T: Default>(&self, change: impl FnOnce(&mut ConsumerStatus) -> T) -> T {
        let mut before = T::default();
        self.0.send_modify(|status| before = change(status));
        before
    }

    pub(super) fn started(&self) {
        self.0
            .send_if_modified(|status| !std::mem::replace(&mut status.has_started, true));
    }

    pub(super) fn paused(&self, why: Option<String>) {
        let is_paused = why.is_some();
        let before = self.change(|status| std::mem::replace(&mut status.paused, why));
        if before.is_some() != is_paused {
            telemetry::database_is_away(is_paused);
        }
    }

    pub(super) fn paused_destination(&self, destination: &Destination, why: Option<String>) {
        let is_paused = why.is_some();
        let before = self.change(|status| match why {
            Some(why) => status
                .paused_destinations
                .insert(destination.to_string(), why),
            None => status.paused_destinations.remove(destination.as_str()),
        });
        if before.is_some() != is_paused {
            telemetry::destination_is_paused(destination, is_paused);
        }
    }
}
