//! The order of a batch: effects of one key wait for each other, effects without a key for nobody.

use std::collections::{HashMap, VecDeque};

use crate::OutgoingMessage;

/// What is left of a batch, key by key, as places in the batch.
#[derive(Debug)]
pub(super) struct Lanes {
    lanes: Vec<VecDeque<usize>>,
    left: usize,
}

impl Lanes {
    /// The lanes of these effects, without those that `is_done`.
    pub(super) fn new(
        messages: &[OutgoingMessage],
        is_done: impl Fn(&OutgoingMessage) -> bool,
    ) -> Self {
        let mut lanes: Vec<VecDeque<usize>> = Vec::new();
        let mut by_key: HashMap<&str, usize> = HashMap::new();
        let mut left = 0;
        for (place, message) in messages
            .iter()
            .enumerate()
            .filter(|(_, message)| !is_done(message))
        {
            left += 1;
            match message.key.as_deref() {
                Some(key) => {
                    let lane = *by_key.entry(key).or_insert(lanes.len());
                    if lane == lanes.len() {
                        lanes.push(VecDeque::new());
                    }
                    lanes[lane].push_back(place);
                }
                None => lanes.push(VecDeque::from([place])),
            }
        }
        Self { lanes, left }
    }

    /// All lanes, in the order of their first effects.
    pub(super) fn all(&self) -> impl Iterator<Item = usize> + use<> {
        0..self.lanes.len()
    }

    /// The places of all effects that are left.
    pub(super) fn places(&self) -> impl Iterator<Item = usize> {
        self.lanes.iter().flatten().copied()
    }

    /// The place of the effect that is next in a lane.
    pub(super) fn next_of(&self, lane: usize) -> Option<usize> {
        self.lanes[lane].front().copied()
    }

    /// The next effect of a lane is done; whether there is another behind it.
    pub(super) fn advance(&mut self, lane: usize) -> bool {
        if self.lanes[lane].pop_front().is_some() {
            self.left -= 1;
        }
        !self.lanes[lane].is_empty()
    }

    /// Whether every effect is done.
    pub(super) fn is_empty(&self) -> bool {
        self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_key_is_one_lane_and_an_effect_without_a_key_has_its_own() {
        let messages: Vec<OutgoingMessage> = [Some("a"), None, Some("b"), Some("a"), None]
            .into_iter()
            .map(|key| {
                let mut message = OutgoingMessage::new(Uuid::nil(), "t", "");
                message.key = key.map(str::to_owned);
                message
            })
            .collect();
        let mut lanes = Lanes::new(&messages, |_| false);
        assert_eq!(
            lanes
                .all()
                .map(|lane| lanes.next_of(lane))
                .collect::<Vec<_>>(),
            [Some(0), Some(1), Some(2), Some(4)]
        );
        assert!(lanes.advance(0), "a second effect of a");
        assert_eq!(lanes.next_of(0), Some(3));
        for lane in lanes.all() {
            assert!(!lanes.advance(lane));
            assert!(!lanes.advance(lane), "nothing more to do");
        }
        assert!(lanes.is_empty());
        assert!(Lanes::new(&messages, |_| true).is_empty());
    }
}
