//! Reports what the partitions of a process wait for: the database, the broker or a topic. Each
//! observation updates the status and the metrics, and is logged when it is new.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use idem_client::{ErrorKind, relay::OutgoingMessage};
use tokio::sync::watch;
use tracing::{debug, info};

use super::{
    PublishError, RelayStatus, UnavailableTopic,
    errors::{is_final, is_lost_conflict},
};
use crate::{
    Error,
    error::causes,
    telemetry::{self, warn_if_new},
};

/// The largest number of unavailable topics in the status.
const MOST_TOPICS: usize = 100;
/// The largest number of causes that are logged during one outage. The text of a cause can differ
/// at each attempt.
const MOST_LOGGED: usize = 16;
/// The cause of an outage of a broker that does not reply.
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

/// The outages that make partitions wait.
#[derive(Debug, Default)]
struct Outages {
    database: Outage,
    broker: Outage,
    topics: BTreeMap<String, Outage>,
}

/// An outage of the database, the broker or a topic. It begins when the first partition meets it,
/// and ends when no partition waits any more.
#[derive(Debug, Default)]
struct Outage {
    partitions: BTreeSet<i32>,
    /// The causes that were logged since the outage began.
    logged: BTreeSet<String>,
    /// The reason of a topic's outage at its first attempt.
    reason: String,
}

impl Outage {
    /// Records that a partition waits. Returns whether to log the cause.
    fn begins(&mut self, partition: i32, cause: &str) -> bool {
        self.partitions.insert(partition);
        self.logged.len() < MOST_LOGGED && self.logged.insert(cause.to_owned())
    }

    /// Records that a partition does not wait. Returns whether this ends the outage.
    fn ends(&mut self, partition: i32) -> bool {
        self.partitions.remove(&partition);
        self.partitions.is_empty() && !std::mem::take(&mut self.logged).is_empty()
    }
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

    /// Logs an outage. `message` is the effect that met it.
    fn warn(&self, is_new: bool, what: &str, reason: &str, message: Option<&OutgoingMessage>) {
        warn_if_new!(
            is_new,
            relay = &*self.relay,
            partition = self.partition,
            topic = message.map(|message| message.topic.as_str()),
            message.id = message.map(|message| message.message_id.to_string()),
            error = reason,
            "{what}"
        );
    }

    // The database

    /// Records the result of a statement that needs no lease. A lost conflict with a concurrent
    /// transaction shows that the database is available, and the statement is retried.
    pub(super) fn step<T>(&self, done: Result<T, Error>) -> Result<T, Error> {
        match &done {
            Err(error) if is_lost_conflict(error) => {
                self.warn(
                    false,
                    "a statement of the relay lost a conflict",
                    &causes(error),
                    None,
                );
                self.database_serves();
            }
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

    fn database_fails(&self, error: &Error) {
        let reason = causes(error);
        let mut outages = self.outages();
        let is_new = outages
            .database
            .begins(self.partition, error.kind().as_str());
        self.show(
            |status| (&mut status.database, &mut status.database_error),
            false,
            Some(&reason),
        );
        telemetry::relay_database_is_away(&self.relay, true);
        drop(outages);
        let what = "the database is not available to the relay, which retries";
        self.warn(is_new, what, &reason, None);
    }

    fn database_serves(&self) {
        let mut outages = self.outages();
        let ends = outages.database.ends(self.partition);
        if outages.database.partitions.is_empty() {
            self.show(
                |status| (&mut status.database, &mut status.database_error),
                true,
                None,
            );
        }
        if ends {
            telemetry::relay_database_is_away(&self.relay, false);
            info!(
                relay = &*self.relay,
                "the database is available to the relay again"
            );
        }
    }

    // The broker

    /// Records that the broker is unavailable, or lacks something that the publisher needs, such as
    /// its exchange: to this effect, or to a check.
    pub(super) fn broker_fails(&self, error: &PublishError, message: Option<&OutgoingMessage>) {
        let (is_there, reason) = (
            matches!(error, PublishError::TopicUnavailable(_)),
            error.reason(),
        );
        let (cause, what) = match is_there {
            true => (
                &*reason,
                "the broker is available but cannot accept effects",
            ),
            false => (AWAY, "the broker is not available: effects wait"),
        };
        let mut outages = self.outages();
        let is_new = outages.broker.begins(self.partition, cause);
        self.show(
            |status| (&mut status.broker, &mut status.broker_error),
            Some(is_there),
            Some(&reason),
        );
        telemetry::relay_broker_is_away(&self.relay, !is_there);
        drop(outages);
        self.warn(is_new, what, &reason, message);
    }

    /// Records that the broker replied, with success or an error.
    pub(super) fn broker_answers(&self) {
        self.broker_ends(Some(true), "the broker is available again");
    }

    /// Records that the broker accepts connections again. Nothing was published, so it is not known
    /// whether the broker accepts effects.
    pub(super) fn broker_accepts(&self) {
        self.broker_ends(None, "no effect waits for the broker any more");
    }

    fn broker_ends(&self, is_there: Option<bool>, what: &str) {
        let mut outages = self.outages();
        let ends = outages.broker.ends(self.partition);
        if ends || is_there.is_some() && outages.broker.partitions.is_empty() {
            self.show(
                |status| (&mut status.broker, &mut status.broker_error),
                is_there,
                None,
            );
        }
        if ends {
            telemetry::relay_broker_is_away(&self.relay, false);
            info!(relay = &*self.relay, "{what}");
        }
    }

    /// Returns whether the broker was unavailable when this partition last used it.
    pub(super) fn is_broker_away(&self) -> bool {
        self.outages().broker.partitions.contains(&self.partition)
    }

    /// Sets a state and its error in the status, if they are new.
    fn show<T: PartialEq>(
        &self,
        part: impl Fn(&mut RelayStatus) -> (&mut T, &mut Option<String>),
        state: T,
        error: Option<&str>,
    ) {
        self.status.send_if_modified(|status| {
            let (known, known_error) = part(status);
            let is_changed = (&*known, known_error.as_deref()) != (&state, error);
            if is_changed {
                *known = state;
                *known_error = error.map(str::to_owned);
            }
            is_changed
        });
    }

    // The topics

    /// Records that the broker did not accept an effect because of its topic. Of several topics
    /// with the same reason, only one is logged at a time: the first topic, and when it recovers,
    /// the next topic that fails again.
    pub(super) fn topic_fails(&self, message: &OutgoingMessage, error: &PublishError) {
        let (topic, reason) = (&message.topic, error.reason());
        let mut outages = self.outages();
        let count = outages.topics.len();
        let known = outages
            .topics
            .entry(topic.clone())
            .or_insert_with(|| Outage {
                reason: reason.clone(),
                ..Outage::default()
            });
        known.partitions.insert(self.partition);
        let cause = known.reason.clone();
        let is_logged = outages
            .topics
            .values()
            .any(|other| other.logged.contains(&cause));
        if let Some(known) = outages.topics.get_mut(topic).filter(|_| !is_logged) {
            known.logged.insert(cause);
        }
        if outages.topics.len() > count {
            self.show_topics(&outages);
        }
        drop(outages);
        let what = "a topic is not available: its effects wait";
        self.warn(!is_logged, what, &reason, Some(message));
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

    /// Ends the wait of this partition. If no partition waits any more, returns whether the outage
    /// was logged.
    fn topic_ends(&self, topic: &str) -> Option<bool> {
        let mut outages = self.outages();
        let known = outages.topics.get_mut(topic)?;
        known.partitions.remove(&self.partition);
        if !known.partitions.is_empty() {
            return None;
        }
        let ended = outages.topics.remove(topic)?;
        self.show_topics(&outages);
        Some(!ended.logged.is_empty())
    }

    /// Records that the partition has no effects of other topics than these: it begins a batch, or
    /// has none.
    pub(super) fn keep_topics(&self, has_topic: impl Fn(&str) -> bool) {
        let mut outages = self.outages();
        let count = outages.topics.len();
        outages.topics.retain(|topic, outage| {
            if !has_topic(topic) {
                outage.partitions.remove(&self.partition);
            }
            !outage.partitions.is_empty()
        });
        if outages.topics.len() < count {
            self.show_topics(&outages);
        }
    }

    /// Returns what the batch of the partition waits for: a topic with its reason, and the number
    /// of the other topics.
    pub(super) fn waits_for(&self) -> Option<String> {
        let outages = self.outages();
        let all = outages.topics.iter();
        let mut topics = all.filter(|(_, outage)| outage.partitions.contains(&self.partition));
        let (topic, Outage { reason, .. }) = topics.next()?;
        Some(match topics.count() {
            0 => format!("topic \"{topic}\": {reason}"),
            others => format!("topic \"{topic}\": {reason} (and {others} other topics)"),
        })
    }

    fn show_topics(&self, outages: &Outages) {
        telemetry::relay_unavailable_topics(&self.relay, outages.topics.len());
        self.status.send_modify(|status| {
            status.unavailable_topics = outages.topics.len();
            let shown = outages.topics.iter().take(MOST_TOPICS);
            let shown = shown.map(|(topic, outage)| UnavailableTopic {
                topic: topic.clone(),
                reason: outage.reason.clone(),
            });
            status.unavailable = shown.collect();
        });
    }

    /// Records that the relay was dropped and all its partitions have ended. The process then reads
    /// the new number of partitions and reports this statement for partition 0, so the first
    /// success of the statement ends an outage of the database.
    pub(super) fn partitions_are_gone(&self) {
        let mut outages = self.outages();
        outages.database.partitions = BTreeSet::from([0]);
        outages.broker.partitions.clear();
        outages.topics.clear();
        self.show_topics(&outages);
        drop(outages);
        self.broker_accepts();
    }
}
