//! The sequences of a batch that wait for an unavailable topic. After each pause one sequence
//! retries. When the broker accepts an effect of the topic, all sequences of the topic continue.
//!
//! A sequence is the effects of one ordering key in a batch, or one effect without a key: see
//! `KeyOrder`. The sequence that retries after a pause probes the topic.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use super::settings::AWAY;
use crate::backoff::Backoff;

/// The largest number of unavailable topics that are probed at the same time. Many topics may be
/// unavailable for the same reason, and each probe takes the place of another effect in flight.
const MOST_TRIED: usize = 8;

/// The unavailable topics and the sequences that wait for them.
#[derive(Debug, Default)]
pub(super) struct Waiting<'a> {
    topics: HashMap<&'a str, Topic>,
    /// The topics in the state `Deferred`, in the order in which they may try. A topic in this list
    /// may no longer be in this state.
    deferred: VecDeque<&'a str>,
}

#[derive(Debug)]
struct Topic {
    sequences: VecDeque<usize>,
    backoff: Backoff,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// No effect of the topic is published before the pause is over.
    Resting,
    /// The pause is over, and one sequence may try.
    Due,
    /// One sequence may try as soon as fewer than [`MOST_TRIED`] topics are being tried.
    Deferred,
    /// One sequence is trying.
    Trying,
}

impl<'a> Waiting<'a> {
    fn tried(&self) -> usize {
        self.topics
            .values()
            .filter(|topic| topic.state == State::Trying)
            .count()
    }

    /// Returns whether a sequence may publish an effect of this topic now. If not, the sequence
    /// waits here.
    pub(super) fn admits(&mut self, name: &'a str, sequence: usize) -> bool {
        let has_slot = self.tried() < MOST_TRIED;
        let Some(topic) = self.topics.get_mut(name) else {
            return true;
        };
        if topic.state == State::Due && has_slot {
            topic.state = State::Trying;
            return true;
        }
        if topic.state == State::Due {
            topic.state = State::Deferred;
            self.deferred.push_back(name);
        }
        topic.sequences.push_back(sequence);
        false
    }

    /// Returns the sequences that may try now, because fewer topics are being tried.
    #[must_use = "the returned sequences no longer wait: publish them"]
    pub(super) fn turns(&mut self) -> Vec<usize> {
        let mut sequences = Vec::new();
        if self.deferred.is_empty() {
            return sequences;
        }
        let free = MOST_TRIED.saturating_sub(self.tried());
        while sequences.len() < free
            && let Some(name) = self.deferred.pop_front()
        {
            if let Some(topic) = self.topics.get_mut(name)
                && topic.state == State::Deferred
            {
                topic.state = State::Due;
                sequences.extend(topic.sequences.pop_front());
            }
        }
        sequences
    }

    /// Records that the topic was unavailable for the effect of a sequence. The sequence waits from
    /// now on. Returns the pause to wait, or `None` if a pause has already begun.
    pub(super) fn refused(&mut self, topic: &'a str, sequence: usize) -> Option<Duration> {
        let topic = self.topics.entry(topic).or_insert_with(|| Topic {
            sequences: VecDeque::new(),
            backoff: Backoff::new(AWAY.0, AWAY.1),
            state: State::Trying,
        });
        topic.sequences.push_back(sequence);
        if topic.state == State::Resting {
            return None;
        }
        topic.state = State::Resting;
        Some(topic.backoff.next())
    }

    /// Records that the pause of a topic is over. Returns the sequence that probes the topic.
    #[must_use = "the returned sequence no longer waits: publish it"]
    pub(super) fn pause_ends(&mut self, topic: &str) -> Option<usize> {
        let topic = self.topics.get_mut(topic)?;
        topic.state = State::Due;
        topic.sequences.pop_front()
    }

    /// Records that the broker did not confirm the effect that probed the topic. The caller retries
    /// the sequence of this effect, and the other sequences keep waiting.
    pub(super) fn not_confirmed(&mut self, topic: &str) {
        if let Some(topic) = self.topics.get_mut(topic)
            && topic.state == State::Trying
        {
            topic.state = State::Due;
        }
    }

    /// Records that the reply to the effect that probed the topic does not show whether the topic
    /// is available. Returns the sequence that probes next.
    #[must_use = "the returned sequence no longer waits: publish it"]
    pub(super) fn undecided(&mut self, topic: &str) -> Option<usize> {
        self.not_confirmed(topic);
        let topic = self.topics.get_mut(topic)?;
        (topic.state == State::Due)
            .then(|| topic.sequences.pop_front())
            .flatten()
    }

    /// Records that the broker accepted an effect of the topic. Returns the sequences that waited
    /// for the topic.
    #[must_use = "the returned sequences no longer wait: publish them"]
    pub(super) fn takes(&mut self, topic: &str) -> VecDeque<usize> {
        self.topics
            .remove(topic)
            .map(|topic| topic.sequences)
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At most eight topics are tried at a time. The other topics are tried after them in order.
    #[test]
    fn number_of_topics_tried_at_once_is_limited() {
        const NAMES: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
        let mut waiting = Waiting::default();
        for (sequence, topic) in NAMES.into_iter().enumerate() {
            assert!(waiting.refused(topic, sequence).is_some());
            assert_eq!(waiting.pause_ends(topic), Some(sequence));
        }
        let admitted = NAMES
            .iter()
            .enumerate()
            .filter(|(sequence, topic)| waiting.admits(topic, *sequence))
            .count();
        assert_eq!(admitted, 8, "the number of tried topics is limited");
        assert_eq!(waiting.turns(), [0; 0], "no topic may be tried");
        assert!(waiting.refused("0", 0).is_some());
        assert_eq!(waiting.turns(), [8]);
        assert!(waiting.admits("8", 8));
        assert_eq!(waiting.turns(), [0; 0]);
        waiting.not_confirmed("1");
        assert_eq!(waiting.takes("2"), [0; 0]);
        assert_eq!(waiting.turns(), [9]);
        assert!(
            waiting.admits("9", 9) && waiting.admits("1", 1),
            "both topics may be tried"
        );
    }
}
