//! The unavailable topics of a batch. After each pause one sequence probes its topic. When the
//! broker accepts an effect of the topic, all sequences of the topic continue.
//!
//! A sequence is the effects of one ordering key in a batch, or one effect without a key: see
//! `KeyOrder`. `Reporter` has what all partitions of the process know about these topics.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use idem_client::relay::OutgoingMessage;

use super::{PublishError, reporter::Reporter, settings::AWAY};
use crate::backoff::Backoff;

/// The largest number of unavailable topics that are probed at the same time. Many topics may be
/// unavailable for the same reason, and each probe takes the slot of another effect in flight.
const MOST_PROBED: usize = 8;

/// The unavailable topics of a batch, and the sequences that wait for them.
pub(super) struct TopicStates<'a> {
    topics: HashMap<&'a str, TopicState>,
    /// The topics that may be probed, in this order. A topic in this list may no longer be `Due`.
    due: VecDeque<&'a str>,
    reporter: &'a Reporter,
}

struct TopicState {
    sequences: VecDeque<usize>,
    backoff: Backoff,
    probe: Probe,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Probe {
    /// No effect of the topic is published before the pause is over.
    Resting,
    /// One sequence may probe as soon as fewer than [`MOST_PROBED`] topics are probed.
    Due,
    /// This sequence probes.
    Running(usize),
}

impl<'a> TopicStates<'a> {
    pub(super) fn new(reporter: &'a Reporter) -> Self {
        Self {
            topics: HashMap::new(),
            due: VecDeque::new(),
            reporter,
        }
    }

    /// Returns whether a sequence may publish an effect of this topic now. If not, the sequence
    /// waits here.
    pub(super) fn admits(&mut self, name: &'a str, sequence: usize) -> bool {
        let Some(topic) = self.topics.get_mut(name) else {
            return true;
        };
        if topic.probe == Probe::Running(sequence) {
            return true;
        }
        topic.sequences.push_back(sequence);
        if topic.probe == Probe::Due {
            self.due.push_back(name);
        }
        false
    }

    /// Returns the sequences that may probe now.
    #[must_use = "the returned sequences no longer wait: publish them"]
    pub(super) fn probes(&mut self) -> Vec<usize> {
        let mut probes = Vec::new();
        if self.due.is_empty() {
            return probes;
        }
        let running = |topic: &&TopicState| matches!(topic.probe, Probe::Running(_));
        let mut free = MOST_PROBED.saturating_sub(self.topics.values().filter(running).count());
        while free > 0
            && let Some(name) = self.due.pop_front()
        {
            if let Some(topic) = self.topics.get_mut(name)
                && topic.probe == Probe::Due
                && let Some(sequence) = topic.sequences.pop_front()
            {
                topic.probe = Probe::Running(sequence);
                probes.push(sequence);
                free -= 1;
            }
        }
        probes
    }

    /// Records that the topic was unavailable for the effect of a sequence. The sequence waits from
    /// now on. Returns the pause to wait, or `None` if a pause has already begun.
    pub(super) fn refused(
        &mut self,
        message: &'a OutgoingMessage,
        sequence: usize,
        error: &PublishError,
    ) -> Option<Duration> {
        self.reporter.topic_fails(message, error);
        let topic = self
            .topics
            .entry(&message.topic)
            .or_insert_with(|| TopicState {
                sequences: VecDeque::new(),
                backoff: AWAY.start(),
                probe: Probe::Due,
            });
        topic.sequences.push_back(sequence);
        if topic.probe == Probe::Resting {
            return None;
        }
        topic.probe = Probe::Resting;
        Some(topic.backoff.next())
    }

    /// Records that the pause of a topic is over.
    pub(super) fn pause_ends(&mut self, name: &'a str) {
        if let Some(topic) = self.topics.get_mut(name) {
            topic.probe = Probe::Due;
            self.due.push_back(name);
        }
    }

    /// Records that the reply to the effect of this sequence does not show whether the topic is
    /// available. Another sequence of the topic probes next.
    pub(super) fn undecided(&mut self, name: &'a str, sequence: usize) {
        let topic = self.topics.get(name);
        if topic.is_some_and(|topic| topic.probe == Probe::Running(sequence)) {
            self.pause_ends(name);
        }
    }

    /// Records that the broker accepted an effect of the topic. Returns the sequences that waited
    /// for the topic.
    #[must_use = "the returned sequences no longer wait: publish them"]
    pub(super) fn takes(&mut self, name: &str) -> VecDeque<usize> {
        self.reporter.topic_takes(name);
        let topic = self.topics.remove(name);
        topic.map(|topic| topic.sequences).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;
    use uuid::Uuid;

    use super::*;

    /// At most eight topics are probed at a time. The other topics are probed after them in order.
    #[test]
    fn number_of_topics_probed_at_once_is_limited() {
        const NONE: [usize; 0] = [];
        let reporter = Reporter::new("default", watch::Sender::default());
        let message = |n: usize| OutgoingMessage::new(Uuid::nil(), n.to_string(), Vec::new());
        let messages: Vec<_> = (0..10).map(message).collect();
        let missing = PublishError::TopicUnavailable("it does not exist".into());
        let mut topics = TopicStates::new(&reporter);
        for (sequence, message) in messages.iter().enumerate() {
            assert!(topics.refused(message, sequence, &missing).is_some());
            topics.pause_ends(&message.topic);
        }
        assert_eq!(topics.probes(), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(topics.probes(), NONE, "no other topic may be probed");
        assert!(topics.refused(&messages[0], 0, &missing).is_some());
        assert_eq!(topics.probes(), [8]);
        assert!(topics.admits("8", 8), "its sequence probes");
        topics.undecided("1", 1);
        assert_eq!(topics.probes(), [9], "the next topic in order");
        assert_eq!(topics.takes("2"), NONE);
        assert_eq!(topics.probes(), NONE, "no sequence waits for topic 1");
        assert!(!topics.admits("1", 1), "a sequence waits for its turn");
        assert_eq!(topics.probes(), [1]);
    }

    /// A late reply to an effect that was no probe does not end the pause of its topic.
    #[test]
    fn late_reply_does_not_end_the_pause_of_a_topic() {
        let reporter = Reporter::new("default", watch::Sender::default());
        let message = OutgoingMessage::new(Uuid::nil(), "receipts", Vec::new());
        let missing = PublishError::TopicUnavailable("it does not exist".into());
        let mut topics = TopicStates::new(&reporter);
        assert!(topics.refused(&message, 0, &missing).is_some());
        topics.undecided("receipts", 1);
        assert!(topics.probes().is_empty());
        assert!(!topics.admits("receipts", 1));
    }
}
