//! The lanes of a batch that wait for a topic. One of them tries again after each pause, and all go
//! on when the broker takes an effect of the topic.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use super::{pauses::Pauses, runtime::AWAY};

/// How many topics are tried at a time. Many of them may miss the same exchange.
const MOST_TRIED: usize = 8;

/// Topics that are not available, and the lanes that wait for them.
#[derive(Debug, Default)]
pub(super) struct Waiting<'a> {
    topics: HashMap<&'a str, Topic>,
    /// Topics whose turn comes after others, in this order. Some may not be `Deferred` any more.
    deferred: VecDeque<&'a str>,
}

#[derive(Debug)]
struct Topic {
    lanes: VecDeque<usize>,
    pauses: Pauses,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// No effect of the topic is published before the pause is over.
    Resting,
    /// One lane may try.
    Due,
    /// One lane may try as soon as fewer topics are tried.
    Deferred,
    /// One lane tries.
    Trying,
}

impl<'a> Waiting<'a> {
    fn tried(&self) -> usize {
        self.topics
            .values()
            .filter(|topic| topic.state == State::Trying)
            .count()
    }

    /// Whether a lane may publish an effect of this topic now. Otherwise the lane waits here.
    pub(super) fn admits(&mut self, name: &'a str, lane: usize) -> bool {
        let has_turn = self.tried() < MOST_TRIED;
        let Some(topic) = self.topics.get_mut(name) else {
            return true;
        };
        if topic.state == State::Due && has_turn {
            topic.state = State::Trying;
            return true;
        }
        if topic.state == State::Due {
            topic.state = State::Deferred;
            self.deferred.push_back(name);
        }
        topic.lanes.push_back(lane);
        false
    }

    /// Returns the lanes that try because fewer topics are tried than before.
    #[must_use = "the returned lanes wait no longer, and have to be published"]
    pub(super) fn turns(&mut self) -> Vec<usize> {
        let mut lanes = Vec::new();
        if self.deferred.is_empty() {
            return lanes;
        }
        let free = MOST_TRIED.saturating_sub(self.tried());
        while lanes.len() < free
            && let Some(name) = self.deferred.pop_front()
        {
            if let Some(topic) = self.topics.get_mut(name)
                && topic.state == State::Deferred
            {
                topic.state = State::Due;
                lanes.extend(topic.lanes.pop_front());
            }
        }
        lanes
    }

    /// The topic refused the effect of a lane, which waits from now on. Returns the pause that
    /// begins with that, unless one lasts already.
    pub(super) fn refused(&mut self, topic: &'a str, lane: usize) -> Option<Duration> {
        let topic = self.topics.entry(topic).or_insert_with(|| Topic {
            lanes: VecDeque::new(),
            pauses: Pauses::new(AWAY.0, AWAY.1),
            state: State::Trying,
        });
        topic.lanes.push_back(lane);
        if topic.state == State::Resting {
            return None;
        }
        topic.state = State::Resting;
        Some(topic.pauses.next())
    }

    /// The pause of a topic is over. Returns the lane that tries.
    #[must_use = "the returned lane waits no longer, and has to be published"]
    pub(super) fn pause_ends(&mut self, topic: &str) -> Option<usize> {
        let topic = self.topics.get_mut(topic)?;
        topic.state = State::Due;
        topic.lanes.pop_front()
    }

    /// The broker did not answer the lane that tried. That lane stays with the caller and tries
    /// again, and the others wait on.
    pub(super) fn unanswered(&mut self, topic: &str) {
        if let Some(topic) = self.topics.get_mut(topic)
            && topic.state == State::Trying
        {
            topic.state = State::Due;
        }
    }

    /// The broker answered the lane that tried, and said nothing of the topic. Returns the lane
    /// that tries next.
    #[must_use = "the returned lane waits no longer, and has to be published"]
    pub(super) fn undecided(&mut self, topic: &str) -> Option<usize> {
        self.unanswered(topic);
        let topic = self.topics.get_mut(topic)?;
        (topic.state == State::Due)
            .then(|| topic.lanes.pop_front())
            .flatten()
    }

    /// The topic took an effect. Returns the lanes that waited for it.
    #[must_use = "the returned lanes wait no longer, and have to be published"]
    pub(super) fn takes(&mut self, topic: &str) -> VecDeque<usize> {
        self.topics
            .remove(topic)
            .map(|topic| topic.lanes)
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lane_tries_after_each_pause_and_all_go_on_together() {
        let mut waiting = Waiting::default();
        assert!(
            waiting.admits("t", 0) && waiting.admits("t", 1),
            "nothing is known of it"
        );
        assert!(waiting.refused("t", 0).is_some());
        assert_eq!(waiting.refused("t", 1), None, "the pause lasts");
        assert!(!waiting.admits("t", 2) && waiting.admits("other", 3));
        assert_eq!(waiting.pause_ends("t"), Some(0));
        assert!(
            waiting.admits("t", 0) && !waiting.admits("t", 4),
            "one tries"
        );
        assert!(waiting.refused("t", 0).is_some(), "the next pause begins");
        assert_eq!(waiting.pause_ends("t"), Some(1));
        assert!(waiting.admits("t", 1));
        assert_eq!(waiting.undecided("t"), Some(2), "another one tries");
        assert!(waiting.admits("t", 2));
        assert_eq!(waiting.takes("t"), [4, 0]);
        assert!(waiting.admits("t", 5));
    }

    #[test]
    fn probe_without_an_answer_leaves_the_other_lanes_waiting() {
        let mut waiting = Waiting::default();
        for lane in 0..3 {
            let _ = waiting.refused("t", lane);
        }
        assert_eq!(waiting.pause_ends("t"), Some(0));
        for _ in 0..3 {
            assert!(waiting.admits("t", 0), "it may try");
            waiting.unanswered("t");
        }
        assert!(waiting.admits("t", 0), "it may try");
        assert_eq!(waiting.takes("t"), [1, 2]);
    }

    #[test]
    fn few_topics_are_tried_at_a_time_and_each_has_its_turn() {
        const NAMES: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
        let mut waiting = Waiting::default();
        for (lane, topic) in NAMES.into_iter().enumerate() {
            assert!(waiting.refused(topic, lane).is_some());
            assert_eq!(waiting.pause_ends(topic), Some(lane));
        }
        let admitted = NAMES
            .iter()
            .enumerate()
            .filter(|(lane, topic)| waiting.admits(topic, *lane))
            .count();
        assert_eq!(admitted, 8, "at most that many are tried");
        assert_eq!(waiting.turns(), [0; 0], "none has its turn");
        assert!(waiting.refused("0", 0).is_some());
        assert_eq!(waiting.turns(), [8]);
        assert!(waiting.admits("8", 8));
        assert_eq!(waiting.turns(), [0; 0]);
        waiting.unanswered("1");
        assert_eq!(waiting.takes("2"), [0; 0]);
        assert_eq!(waiting.turns(), [9]);
        assert!(
            waiting.admits("9", 9) && waiting.admits("1", 1),
            "both turns are free"
        );
    }
}
