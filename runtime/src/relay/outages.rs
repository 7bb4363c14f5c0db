//! The failures that make the partitions of one process wait: failures of the database, the broker
//! or a topic.

use std::collections::{BTreeMap, BTreeSet};

/// The largest number of causes that are logged during one failure. The text of a cause can differ at
/// each attempt.
const MOST_LOGGED: usize = 16;

/// The failures that make the partitions of one process wait.
#[derive(Debug, Default)]
pub(super) struct Outages {
    pub(super) database: Outage,
    pub(super) broker: Outage,
    topics: BTreeMap<String, Topic>,
}

/// A failure of the database or the broker. It begins when the first partition meets it, and ends
/// when no partition waits any more.
#[derive(Debug, Default)]
pub(super) struct Outage {
    partitions: BTreeSet<i32>,
    /// The causes that were logged since the failure began.
    logged: BTreeSet<String>,
}

impl Outage {
    /// Records that a partition waits. Returns whether to log the cause.
    pub(super) fn begins(&mut self, partition: i32, cause: &str) -> bool {
        self.partitions.insert(partition);
        self.logged.len() < MOST_LOGGED && self.logged.insert(cause.to_owned())
    }

    /// Records that a partition does not wait. Returns whether this ends the failure.
    pub(super) fn ends(&mut self, partition: i32) -> bool {
        self.partitions.remove(&partition);
        self.partitions.is_empty() && !std::mem::take(&mut self.logged).is_empty()
    }

    pub(super) fn is_of(&self, partition: i32) -> bool {
        self.partitions.contains(&partition)
    }

    pub(super) fn is_over(&self) -> bool {
        self.partitions.is_empty()
    }
}

#[derive(Debug)]
struct Topic {
    reason: String,
    /// Whether the failure of this topic was logged. False while another topic with the same reason
    /// is logged.
    is_logged: bool,
    partitions: BTreeSet<i32>,
}

impl Outages {
    /// Records that a topic is not available. Returns whether the failure is new.
    pub(super) fn topic_fails(&mut self, partition: i32, topic: &str, reason: &str) -> bool {
        if let Some(known) = self.topics.get_mut(topic) {
            known.partitions.insert(partition);
            return false;
        }
        let new = Topic {
            reason: reason.to_owned(),
            is_logged: false,
            partitions: BTreeSet::from([partition]),
        };
        self.topics.insert(topic.to_owned(), new);
        true
    }

    /// Returns whether to log the failure of this topic now, and records that it is logged. Of
    /// several topics with the same reason, only one is logged at a time: the first topic, and when
    /// it recovers, the next topic that fails again.
    pub(super) fn logs_topic_now(&mut self, topic: &str) -> bool {
        let reason = self.topics.get(topic).map(|known| known.reason.clone());
        let mut same = self.topics.values();
        if same.any(|known| known.is_logged && Some(&known.reason) == reason.as_ref()) {
            return false;
        }
        self.topics.get_mut(topic).is_some_and(|known| {
            known.is_logged = true;
            true
        })
    }

    /// Records that a partition does not wait for a topic. If this ends the failure, returns
    /// whether the failure was logged.
    pub(super) fn topic_ends(&mut self, partition: i32, topic: &str) -> Option<bool> {
        let known = self.topics.get_mut(topic)?;
        known.partitions.remove(&partition);
        if !known.partitions.is_empty() {
            return None;
        }
        self.topics.remove(topic).map(|known| known.is_logged)
    }

    /// Records that a partition waits for no other topics than these. Returns whether a failure of
    /// a topic has ended.
    pub(super) fn keep_topics(&mut self, partition: i32, has_topic: impl Fn(&str) -> bool) -> bool {
        let before = self.topics.len();
        self.topics.retain(|name, topic| {
            if !has_topic(name) {
                topic.partitions.remove(&partition);
            }
            !topic.partitions.is_empty()
        });
        self.topics.len() < before
    }

    /// Records that the relay was dropped and all its partitions have ended. The process then reads
    /// the new number of partitions and reports this statement for partition 0, so the first
    /// success of the statement ends a failure of the database. Returns whether a failure of the
    /// broker has ended.
    pub(super) fn partitions_are_gone(&mut self) -> bool {
        self.database.partitions = BTreeSet::from([0]);
        self.topics.clear();
        self.broker.partitions.clear();
        self.broker.ends(0)
    }

    /// Returns one of the topics that the partition waits for, with its reason and the number of
    /// its other topics.
    pub(super) fn cause_of(&self, partition: i32) -> Option<String> {
        let mut topics = self
            .topics
            .iter()
            .filter(|(_, known)| known.partitions.contains(&partition));
        let (topic, Topic { reason, .. }) = topics.next()?;
        Some(match topics.count() {
            0 => format!("topic \"{topic}\": {reason}"),
            others => format!("topic \"{topic}\": {reason} (and {others} other topics)"),
        })
    }

    /// Returns the unavailable topics with their reasons.
    pub(super) fn topics(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        let topics = self.topics.iter();
        topics.map(|(topic, known)| (topic.as_str(), known.reason.as_str()))
    }
}
