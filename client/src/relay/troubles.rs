//! Which partitions of a process wait for the database, the broker or a topic.
//!
//! Several partitions meet the same trouble, so it begins with the first of them and ends with the
//! last. Only these two are logged.

use std::collections::{BTreeMap, BTreeSet};

use crate::ErrorKind;

/// What the partitions of one process wait for.
#[derive(Debug, Default)]
pub(super) struct Troubles {
    database: BTreeSet<i32>,
    /// The kinds of errors that were logged since the database served last.
    database_kinds: Vec<ErrorKind>,
    broker: BTreeSet<i32>,
    is_broker_logged: bool,
    /// What the broker lacks, as it was logged last.
    lacks: Option<String>,
    topics: BTreeMap<String, Topic>,
}

#[derive(Debug)]
struct Topic {
    reason: String,
    /// False while another topic with this reason is in the log.
    is_logged: bool,
    partitions: BTreeSet<i32>,
}

impl Troubles {
    /// A step in the database failed. Returns whether that is new.
    pub(super) fn database_fails(&mut self, partition: i32, kind: ErrorKind) -> bool {
        self.database.insert(partition);
        let is_new = !self.database_kinds.contains(&kind);
        if is_new {
            self.database_kinds.push(kind);
        }
        is_new
    }

    /// A step in the database succeeded. Returns whether that ends the trouble.
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

    /// The broker did not answer. Returns whether that is new.
    pub(super) fn broker_fails(&mut self, partition: i32) -> bool {
        self.broker.insert(partition);
        !std::mem::replace(&mut self.is_broker_logged, true)
    }

    /// The broker serves, and lacks what the publisher needs. Returns whether that is new.
    pub(super) fn broker_lacks(&mut self, reason: &str) -> bool {
        let is_new = self.lacks.as_deref() != Some(reason);
        if is_new {
            self.lacks = Some(reason.to_owned());
        }
        is_new
    }

    /// The broker does not serve. Returns whether it served and lacked something until now.
    pub(super) fn broker_lacked_something(&mut self) -> bool {
        self.lacks.take().is_some()
    }

    /// The broker answered. Returns whether that ends the trouble.
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

    /// Returns, once, whether the broker was away and no partition waits for it any more.
    pub(super) fn broker_is_unknown(&mut self) -> bool {
        self.broker_trouble_ends()
    }

    /// A topic is not available. Returns whether that is new.
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

    /// Returns, once, whether the log is to name this topic. Many topics may have one reason: the
    /// first is logged, and when it recovers, the next of them that fails again.
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

    /// Whether the log has the trouble of this topic: many topics may have one reason.
    pub(super) fn is_topic_logged(&self, topic: &str) -> bool {
        self.topics.get(topic).is_some_and(|known| known.is_logged)
    }

    /// A topic took an effect. Returns whether that ends the trouble.
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

    /// Whether the broker was away when this partition asked last.
    pub(super) fn is_broker_away_for(&self, partition: i32) -> bool {
        self.broker.contains(&partition)
    }

    /// The partition no longer waits for the broker.
    pub(super) fn forget_broker(&mut self, partition: i32) {
        self.broker.remove(&partition);
    }

    /// A partition begins a batch or has none, and waits for no topic that the batch does not have.
    /// Returns whether topics are gone with that.
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

    /// The relay is gone, and its partitions with it. Asking for the new ones is partition 0's.
    pub(super) fn partitions_are_gone(&mut self) {
        self.database = BTreeSet::from([0]);
        self.broker.clear();
        self.topics.clear();
    }

    /// The topics that are not available, and why.
    pub(super) fn topics(&self) -> impl Iterator<Item = (&str, &str)> {
        let topics = self.topics.iter();
        topics.map(|(topic, known)| (topic.as_str(), known.reason.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_begins_with_its_first_partition_and_ends_with_its_last() {
        let mut troubles = Troubles::default();
        assert!(!troubles.broker_answers(0), "there was none");
        assert!(troubles.broker_fails(0) && !troubles.broker_fails(1) && !troubles.broker_fails(0));
        assert!(!troubles.broker_answers(0) && troubles.is_broker_away());
        assert!(troubles.broker_answers(1) && !troubles.is_broker_away());
        assert!(
            troubles.topic_fails(0, "t", "no queue")
                && !troubles.topic_fails(1, "t", "no exchange")
        );
        assert_eq!(troubles.topics().collect::<Vec<_>>(), [("t", "no queue")]);
        assert!(!troubles.topic_takes(1, "t") && troubles.topic_takes(0, "t"));
        assert_eq!(troubles.topics().count(), 0);
    }

    #[test]
    fn what_the_broker_lacks_is_new_once_in_each_trouble() {
        let mut troubles = Troubles::default();
        for partition in [0, 1] {
            troubles.broker_fails(partition);
        }
        assert!(
            troubles.broker_lacks("a") && !troubles.broker_lacks("a") && troubles.broker_lacks("b")
        );
        assert!(
            !troubles.broker_answers(0) && !troubles.broker_lacks("b"),
            "one waits still"
        );
        assert!(troubles.broker_answers(1));
        troubles.broker_fails(0);
        assert!(troubles.broker_lacks("b"), "it is new again");
    }

    #[test]
    fn each_kind_of_database_trouble_is_new_once() {
        let mut troubles = Troubles::default();
        assert!(troubles.database_fails(0, ErrorKind::ConnectionLost));
        assert!(troubles.database_fails(0, ErrorKind::NotGranted));
        assert!(!troubles.database_fails(1, ErrorKind::ConnectionLost));
        assert!(!troubles.database_serves(0) && troubles.database_serves(1));
        assert!(!troubles.database_serves(1));
        assert!(
            troubles.database_fails(0, ErrorKind::ConnectionLost),
            "it is new again"
        );
    }

    #[test]
    fn partition_without_a_batch_waits_for_no_topic() {
        let mut troubles = Troubles::default();
        troubles.topic_fails(0, "t", "no queue");
        troubles.topic_fails(1, "t", "no queue");
        assert!(!troubles.keep_topics(0, |_| false));
        assert!(troubles.keep_topics(1, |_| false));
        assert_eq!(troubles.topics().count(), 0);
    }

    #[test]
    fn next_batch_waits_only_for_its_own_topics() {
        let mut troubles = Troubles::default();
        troubles.topic_fails(0, "here", "no queue");
        troubles.topic_fails(0, "gone", "no queue");
        assert!(troubles.keep_topics(0, |topic| topic == "here"));
        assert_eq!(
            troubles.topics().collect::<Vec<_>>(),
            [("here", "no queue")]
        );
    }

    #[test]
    fn next_topic_with_a_reason_is_logged_after_the_first_recovered() {
        let mut troubles = Troubles::default();
        for topic in ["first", "second", "other"] {
            let reason = if topic == "other" {
                "no exchange"
            } else {
                "no queue"
            };
            assert!(troubles.topic_fails(0, topic, reason));
        }
        let logged = |troubles: &mut Troubles, topic| troubles.logs_topic_now(topic);
        assert!(
            logged(&mut troubles, "first")
                && !logged(&mut troubles, "second")
                && logged(&mut troubles, "other")
        );
        assert!(!logged(&mut troubles, "first"));
        assert!(troubles.topic_takes(0, "first"));
        assert!(logged(&mut troubles, "second") && !logged(&mut troubles, "second"));
    }

    #[test]
    fn broker_is_unknown_once_after_the_last_partition_forgot_it() {
        let mut troubles = Troubles::default();
        assert!(!troubles.broker_is_unknown(), "it was never away");
        troubles.broker_fails(0);
        troubles.broker_fails(1);
        troubles.forget_broker(0);
        assert!(!troubles.broker_is_unknown() && troubles.is_broker_away_for(1));
        troubles.forget_broker(1);
        assert!(troubles.broker_is_unknown() && !troubles.broker_is_unknown());
    }
}
