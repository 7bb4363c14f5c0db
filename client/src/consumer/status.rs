//! What keeps a consumer from working.

use std::collections::BTreeMap;

use tokio::sync::watch;

use crate::{Destination, telemetry};

/// How a consumer fares: see [`Consumer::status`](crate::Consumer::status).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerStatus {
    /// Why nothing is fetched: the error of the database. `None` while the consumer works.
    pub paused: Option<String>,
    /// Destinations whose messages meet errors of the environment, each with its last error. Their messages come
    /// again later, and use up no attempt.
    pub paused_destinations: BTreeMap<String, String>,
}

impl ConsumerStatus {
    /// Whether nothing is paused.
    pub fn is_ready(&self) -> bool {
        self.paused.is_none() && self.paused_destinations.is_empty()
    }
}

/// Where the consumer writes its status.
pub(super) struct Status(watch::Sender<ConsumerStatus>);

impl Status {
    pub(super) fn new() -> Self {
        Self(watch::Sender::default())
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<ConsumerStatus> {
        self.0.subscribe()
    }

    pub(super) fn paused(&self, why: Option<String>) {
        telemetry::database_is_away(why.is_some());
        self.0.send_modify(|status| status.paused = why);
    }

    pub(super) fn paused_destination(&self, destination: &Destination, why: Option<String>) {
        telemetry::destination_is_paused(destination, why.is_some());
        self.0.send_modify(|status| {
            match why {
                Some(why) => status.paused_destinations.insert(destination.to_string(), why),
                None => status.paused_destinations.remove(destination.as_str()),
            };
        });
    }
}
