//! Records the failures that make the partitions of a process wait: failures of the database, the
//! broker or a topic.
//!
//! A failure begins when the first partition meets it, and ends when no partition waits any more.
//! Only these two events are logged.

use std::collections::{BTreeMap, BTreeSet};

use idem_client::ErrorKind;

/// The failures that make the partitions of one process wait.
#[derive(Debug, Default)]
pub(super) struct Outages {
    database: BTreeSet<i32>,
    /// The kinds of errors that were logged since the database was last available.
    database_kinds: Vec<ErrorKind>,
    broker: BTreeSet<i32>,
    is_broker_logged: bool,
    /// What the available broker lacks, according to the last log message.
    lacks: Option<String>,
    topics: BTreeMap<String, Topic>,
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
    /// Records a failed statement. Returns whether this kind of error is new.
    pub(super) fn database_fails(&mut self, partition: i32, kind: ErrorKind) -> bool {
        self.database.insert(partition);
        let is_new = !self.database_kinds.contains(&kind);
        if is_new {
            self.database_kinds.push(kind);
        }
        is_new
    }

    /// Records a successful statement. Returns whether this ends the failure.
    pub(super) fn database_serves(&mut self, partition: i32) -> bool {
        self.database.remove(&partition);
        let ends = self.database.is_empty() && !self.database_kinds.is_empty();
        if ends {
            self.database_kinds.clear();
        }
        ends
    }

    pub(super) fn is_database_away(&self) -> bool {
        !self.database.is_empty()
    }

    /// Records that the broker is unavailable to a partition. Returns whether the failure is new.
    pub(super) fn broker_fails(&mut self, partition: i32) -> bool {
        self.broker.insert(partition);
        !std::mem::replace(&mut self.is_broker_logged, true)
    }

    /// Records that the broker is available but lacks something that the publisher needs. Returns
    /// whether the reason is new.
    pub(super) fn broker_lacks(&mut self, reason: &str) -> bool {
        let is_new = self.lacks.as_deref() != Some(reason);
        if is_new {
            self.lacks = Some(reason.to_owned());
        }
        is_new
    }

    /// Records that the broker is unavailable. Returns whether the broker was available until now
    /// but lacked something.
    pub(super) fn broker_lacked_something(&mut self) -> bool {
        self.lacks.take().is_some()
    }

    /// Records that the broker replied to this partition. Returns true if no other partition waits
    /// for the broker and the failure was logged, so that the caller logs its end.
    pub(super) fn broker_answers(&mut self, partition: i32) -> bool {
        self.broker.remove(&partition);
        self.broker_trouble_ends()
    }

    fn broker_trouble_ends(&mut self) -> bool {
        if !self.broker.is_empty() {
            return false;
        }
        self.lacks = None;
        std::mem::take(&mut self.is_broker_logged)
    }

    pub(super) fn is_broker_away(&self) -> bool {
        !self.broker.is_empty()
    }

    /// Returns true once after a failure of the broker, when no partition waits for the broker any
    /// more.
    pub(super) fn broker_is_unknown(&mut self) -> bool {
        self.broker_trouble_ends()
    }

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
        let Some(reason) = self.topics.get(topic).map(|known| known.reason.clone()) else {
            return false;
        };
        if self
            .topics
            .values()
            .any(|known| known.is_logged && known.reason == reason)
        {
            return false;
        }
        self.topics.get_mut(topic).is_some_and(|known| {
            known.is_logged = true;
            true
        })
    }

    /// Returns whether the failure of this topic was logged. Of several topics with the same
    /// reason, only one is logged at a time.
    pub(super) fn is_topic_logged(&self, topic: &str) -> bool {
        self.topics.get(topic).is_some_and(|known| known.is_logged)
    }

    /// Records that the broker accepted an effect of a topic. Returns whether this ends the
    /// failure.
    pub(super) fn topic_takes(&mut self, partition: i32, topic: &str) -> bool {
        let Some(known) = self.topics.get_mut(topic) else {
            return false;
        };
        known.partitions.remove(&partition);
        let ends = known.partitions.is_empty();
        if ends {
            self.topics.remove(topic);
        }
        ends
    }

    /// Returns whether the broker was unavailable when this partition last used it.
    pub(super) fn is_broker_away_for(&self, partition: i32) -> bool {
        self.broker.contains(&partition)
    }

    /// Records that the partition no longer waits for the broker.
    pub(super) fn forget_broker(&mut self, partition: i32) {
        self.broker.remove(&partition);
    }

    /// Records that a partition begins a batch or has no batch. The partition then waits only for
    /// topics of this batch. Returns whether a failure of a topic has ended.
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
    /// success of the statement ends a failure of the database.
    pub(super) fn partitions_are_gone(&mut self) {
        self.database = BTreeSet::from([0]);
        self.broker.clear();
        self.topics.clear();
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
    pub(super) fn topics(&self) -> impl Iterator<Item = (&str, &str)> {
        let topics = self.topics.iter();
        topics.map(|(topic, known)| (topic.as_str(), known.reason.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A failure of the broker or a topic begins with the first partition that meets it, and ends
    /// with the last partition that recovers.
    #[test]
    fn failure_lasts_from_first_to_last_partition() {
        let mut outages = Outages::default();
        assert!(!outages.broker_answers(0), "there was no failure");
        assert!(outages.broker_fails(0) && !outages.broker_fails(1) && !outages.broker_fails(0));
        assert!(!outages.broker_answers(0) && outages.is_broker_away());
        assert!(outages.broker_answers(1) && !outages.is_broker_away());
        assert!(
            outages.topic_fails(0, "t", "no queue") && !outages.topic_fails(1, "t", "no exchange")
        );
        assert_eq!(outages.topics().collect::<Vec<_>>(), [("t", "no queue")]);
        assert_eq!(
            outages.cause_of(1).as_deref(),
            Some("topic \"t\": no queue")
        );
        assert!(!outages.topic_takes(1, "t") && outages.topic_takes(0, "t"));
        assert_eq!(outages.topics().count(), 0);
    }

    /// Each missing resource of the broker is reported once, and again after the broker was
    /// available.
    #[test]
    fn missing_broker_resource_is_new_once_per_failure() {
        let mut outages = Outages::default();
        for partition in [0, 1] {
            outages.broker_fails(partition);
        }
        assert!(
            outages.broker_lacks("a") && !outages.broker_lacks("a") && outages.broker_lacks("b")
        );
        assert!(
            !outages.broker_answers(0) && !outages.broker_lacks("b"),
            "one partition still waits"
        );
        assert!(outages.broker_answers(1));
        outages.broker_fails(0);
        assert!(outages.broker_lacks("b"), "the reason is new again");
    }

    /// Each kind of database error is reported once, and again after the database was available.
    #[test]
    fn each_kind_of_database_error_is_new_once() {
        let mut outages = Outages::default();
        assert!(outages.database_fails(0, ErrorKind::ConnectionLost));
        assert!(outages.database_fails(0, ErrorKind::NotGranted));
        assert!(!outages.database_fails(1, ErrorKind::ConnectionLost));
        assert!(!outages.database_serves(0) && outages.database_serves(1));
        assert!(!outages.database_serves(1));
        assert!(
            outages.database_fails(0, ErrorKind::ConnectionLost),
            "the kind is new again"
        );
    }

    /// A partition that has no batch waits for no topic.
    #[test]
    fn partition_without_a_batch_waits_for_no_topic() {
        let mut outages = Outages::default();
        outages.topic_fails(0, "t", "no queue");
        outages.topic_fails(1, "t", "no queue");
        assert!(!outages.keep_topics(0, |_| false));
        assert!(outages.keep_topics(1, |_| false));
        assert_eq!(outages.topics().count(), 0);
    }

    /// A partition that begins a batch waits only for topics of this batch.
    #[test]
    fn next_batch_waits_only_for_its_own_topics() {
        let mut outages = Outages::default();
        outages.topic_fails(0, "here", "no queue");
        outages.topic_fails(0, "gone", "no queue");
        assert!(outages.keep_topics(0, |topic| topic == "here"));
        assert_eq!(outages.topics().collect::<Vec<_>>(), [("here", "no queue")]);
    }

    /// Of several topics with the same reason only one is logged at a time.
    #[test]
    fn next_topic_is_logged_after_the_first_recovered() {
        let mut outages = Outages::default();
        for topic in ["first", "second", "other"] {
            let reason = if topic == "other" {
                "no exchange"
            } else {
                "no queue"
            };
            assert!(outages.topic_fails(0, topic, reason));
        }
        let logged = |outages: &mut Outages, topic| outages.logs_topic_now(topic);
        assert!(
            logged(&mut outages, "first")
                && !logged(&mut outages, "second")
                && logged(&mut outages, "other")
        );
        assert!(!logged(&mut outages, "first"));
        assert!(outages.topic_takes(0, "first"));
        assert!(logged(&mut outages, "second") && !logged(&mut outages, "second"));
    }

    /// The end of a broker failure is reported once, when the last partition no longer waits.
    #[test]
    fn broker_is_unknown_once_after_the_last_partition() {
        let mut outages = Outages::default();
        assert!(
            !outages.broker_is_unknown(),
            "the broker was never unavailable"
        );
        outages.broker_fails(0);
        outages.broker_fails(1);
        outages.forget_broker(0);
        assert!(!outages.broker_is_unknown() && outages.is_broker_away_for(1));
        outages.forget_broker(1);
        assert!(outages.broker_is_unknown() && !outages.broker_is_unknown());
    }
}
