//! Reports what a partition observes of the database, the broker and the topics. Each observation
//! updates the status and the metrics, and is logged when it is new.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use idem_client::ErrorKind;
use idem_client::relay::OutgoingMessage;
use tokio::sync::watch;
use tracing::{debug, info};

use super::{
    PublishError, RelayStatus, UnavailableTopic,
    errors::{is_final, is_lost_conflict},
    outages::Outages,
};
use crate::{
    Error,
    error::causes,
    telemetry::{self, warn_if_new},
};

/// The largest number of unavailable topics in the status.
const MOST_TOPICS: usize = 100;

/// The cause of a failure of the broker that does not reply.
const AWAY: &str = "away";

/// Reports the observations of one partition. All partitions of a process share the status and the
/// outages.
#[derive(Clone, Debug)]
pub(super) struct Reporter {
    pub(super) status: watch::Sender<RelayStatus>,
    pub(super) relay: Arc<str>,
    pub(super) partition: i32,
    outages: Arc<Mutex<Outages>>,
}

impl Reporter {
    /// Creates the reporter of a relay that starts to run, for its partition 0.
    pub(super) fn new(relay: &str, status: watch::Sender<RelayStatus>) -> Self {
        telemetry::relay_begins(relay);
        Self {
            status,
            relay: relay.into(),
            partition: 0,
            outages: Arc::default(),
        }
    }

    pub(super) fn of_partition(&self, partition: i32) -> Self {
        Self {
            partition,
            ..self.clone()
        }
    }

    fn outages(&self) -> MutexGuard<'_, Outages> {
        self.outages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the result of a statement that needs no lease.
    pub(super) fn step<T>(&self, done: Result<T, Error>) -> Result<T, Error> {
        match &done {
            Err(error) if is_lost_conflict(error) => self.conflict_lost(error),
            Err(error) if !is_final(error) => self.database_fails(error),
            _ => self.database_serves(),
        }
        done
    }

    /// Records the result of a statement under a lease. The error of a stale token also shows that
    /// the database is available. Without a lease the same SQLSTATE (55000) means that transaction
    /// ids went backwards.
    pub(super) fn leased_step<T>(&self, done: Result<T, Error>) -> Result<T, Error> {
        match &done {
            Err(error) if error.kind() == ErrorKind::NotClaimed => self.database_serves(),
            _ => return self.step(done),
        }
        done
    }

    /// Records a lost conflict with a concurrent transaction. The conflict shows that the database
    /// is available. The statement is retried.
    fn conflict_lost(&self, error: &Error) {
        let (relay, partition, reason) = (&*self.relay, self.partition, causes(error));
        debug!(
            relay,
            partition,
            error = reason,
            "a statement of the relay lost a conflict"
        );
        self.database_serves();
    }

    fn database_fails(&self, error: &Error) {
        let reason = causes(error);
        let mut outages = self.outages();
        let is_new = outages
            .database
            .begins(self.partition, error.kind().as_str());
        self.show_database(Some(&reason));
        telemetry::relay_database_is_away(&self.relay, true);
        drop(outages);
        let (relay, partition) = (&*self.relay, self.partition);
        warn_if_new!(
            is_new,
            relay,
            partition,
            error = reason,
            "the database is not available to the relay, which retries"
        );
    }

    fn database_serves(&self) {
        let mut outages = self.outages();
        let ends = outages.database.ends(self.partition);
        if outages.database.is_over() {
            self.show_database(None);
        }
        if ends {
            telemetry::relay_database_is_away(&self.relay, false);
            info!(
                relay = &*self.relay,
                "the database is available to the relay again"
            );
        }
    }

    fn show_database(&self, error: Option<&str>) {
        self.status.send_if_modified(|status| {
            let before = (status.database, status.database_error.as_deref());
            let is_changed = before != (error.is_none(), error);
            if is_changed {
                status.database = error.is_none();
                status.database_error = error.map(str::to_owned);
            }
            is_changed
        });
    }

    /// Records that a check of the broker failed.
    pub(super) fn check_fails(&self, error: &PublishError) {
        match error {
            PublishError::TopicUnavailable(_) => self.broker_lacks(&error.reason()),
            _ => self.broker_fails(&error.reason(), None),
        }
    }

    /// Records that the broker is unavailable: to this effect, or to a check.
    pub(super) fn broker_fails(&self, reason: &str, message: Option<&OutgoingMessage>) {
        let mut outages = self.outages();
        let is_new = outages.broker.begins(self.partition, AWAY);
        self.show_broker(Some(false), Some(reason));
        telemetry::relay_broker_is_away(&self.relay, true);
        drop(outages);
        let (relay, partition) = (&*self.relay, self.partition);
        warn_if_new!(
            is_new,
            relay,
            partition,
            topic = message.map(|message| message.topic.as_str()),
            message.id = message.map(|message| message.message_id.to_string()),
            error = reason,
            "the broker is not available: effects wait"
        );
    }

    /// Records that the broker is available but lacks something that the publisher needs, such as
    /// its exchange.
    fn broker_lacks(&self, reason: &str) {
        let mut outages = self.outages();
        let is_new = outages.broker.begins(self.partition, reason);
        self.show_broker(Some(true), Some(reason));
        telemetry::relay_broker_is_away(&self.relay, false);
        drop(outages);
        let (relay, partition) = (&*self.relay, self.partition);
        warn_if_new!(
            is_new,
            relay,
            partition,
            error = reason,
            "the broker is available but cannot accept effects"
        );
    }

    /// Records that the broker replied, with success or an error.
    pub(super) fn broker_answers(&self) {
        let mut outages = self.outages();
        let ends = outages.broker.ends(self.partition);
        if outages.broker.is_over() {
            self.show_broker(Some(true), None);
        }
        if ends {
            telemetry::relay_broker_is_away(&self.relay, false);
            info!(relay = &*self.relay, "the broker is available again");
        }
    }

    /// Returns whether the broker was unavailable when this partition last used it.
    pub(super) fn is_broker_away(&self) -> bool {
        self.outages().broker.is_of(self.partition)
    }

    /// Records that the broker accepts connections again. Nothing was published, so it is not known
    /// whether the broker accepts effects.
    pub(super) fn broker_accepts(&self) {
        let mut outages = self.outages();
        let ends = outages.broker.ends(self.partition);
        self.broker_is_unknown(ends);
    }

    /// Ends a failure of the broker if no partition waits for it any more. No effect has shown that
    /// the broker is available again, so its state is now unknown.
    fn broker_is_unknown(&self, ends: bool) {
        if ends {
            self.show_broker(None, None);
            telemetry::relay_broker_is_away(&self.relay, false);
            info!(
                relay = &*self.relay,
                "no effect waits for the broker any more"
            );
        }
    }

    fn show_broker(&self, is_available: Option<bool>, error: Option<&str>) {
        self.status.send_if_modified(|status| {
            let before = (status.broker, status.broker_error.as_deref());
            let is_changed = before != (is_available, error);
            if is_changed {
                status.broker = is_available;
                status.broker_error = error.map(str::to_owned);
            }
            is_changed
        });
    }

    /// Records that the broker did not accept an effect because of its topic.
    pub(super) fn topic_fails(&self, message: &OutgoingMessage, error: &PublishError) {
        let (topic, reason) = (&message.topic, error.reason());
        let mut outages = self.outages();
        if outages.topic_fails(self.partition, topic, &reason) {
            self.show_topics(&outages);
        }
        let is_logged = outages.logs_topic_now(topic);
        drop(outages);
        let (relay, partition, id) = (&*self.relay, self.partition, message.message_id);
        warn_if_new!(
            is_logged,
            relay,
            partition,
            topic,
            message.id = %id,
            error = reason,
            "a topic is not available: its effects wait"
        );
    }

    /// Records that the broker confirmed an effect of this topic.
    pub(super) fn topic_takes(&self, topic: &str) {
        let relay = &*self.relay;
        match self.topic_ends(topic) {
            Some(true) => info!(relay, topic, "a topic is available again"),
            Some(false) => debug!(relay, topic, "a topic is available again"),
            None => {}
        }
    }

    /// Records that the batch of the partition has no more effects of this topic.
    pub(super) fn topic_has_no_effects(&self, topic: &str) {
        if self.topic_ends(topic).is_some() {
            let relay = &*self.relay;
            info!(relay, topic, "no effect waits for a topic any more");
        }
    }

    fn topic_ends(&self, topic: &str) -> Option<bool> {
        let mut outages = self.outages();
        let is_logged = outages.topic_ends(self.partition, topic)?;
        self.show_topics(&outages);
        Some(is_logged)
    }

    /// Records that the partition has no effects of other topics than these: it begins a batch, or
    /// has none. If the broker was unavailable and there is no batch, publishing can no longer show
    /// when the broker is available again: see [`is_broker_away`](Self::is_broker_away).
    pub(super) fn keep_topics(&self, has_topic: impl Fn(&str) -> bool) {
        let mut outages = self.outages();
        if outages.keep_topics(self.partition, has_topic) {
            self.show_topics(&outages);
        }
    }

    /// Returns what the batch of the partition waits for.
    pub(super) fn waits_for(&self) -> Option<String> {
        self.outages().cause_of(self.partition)
    }

    /// Records that the relay was dropped and all its partitions have ended.
    pub(super) fn partitions_are_gone(&self) {
        let mut outages = self.outages();
        let ends = outages.partitions_are_gone();
        self.show_topics(&outages);
        self.broker_is_unknown(ends);
    }

    fn show_topics(&self, outages: &Outages) {
        let topics = outages.topics();
        telemetry::relay_unavailable_topics(&self.relay, topics.len());
        self.status.send_modify(|status| {
            status.unavailable_topics = topics.len();
            let shown = topics.take(MOST_TOPICS);
            let shown = shown.map(|(topic, reason)| UnavailableTopic {
                topic: topic.to_owned(),
                reason: reason.to_owned(),
            });
            status.unavailable = shown.collect();
        });
    }
}
