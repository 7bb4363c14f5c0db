//! The order of a batch: effects of one key are published one after the other, and effects without
//! a key independently of each other.

use std::collections::{HashMap, VecDeque};

use crate::OutgoingMessage;

/// The effects of a batch that are not done, as indexes into the batch. A sequence holds the
/// effects of one key in their order, or one effect without a key.
#[derive(Debug)]
pub(super) struct KeyOrder {
    sequences: Vec<VecDeque<usize>>,
    left: usize,
}

impl KeyOrder {
    /// Creates the sequences of these effects, without the effects for which `is_done` returns
    /// true.
    pub(super) fn new(
        messages: &[OutgoingMessage],
        is_done: impl Fn(&OutgoingMessage) -> bool,
    ) -> Self {
        let mut sequences: Vec<VecDeque<usize>> = Vec::new();
        let mut by_key: HashMap<&str, usize> = HashMap::new();
        let mut left = 0;
        for (index, message) in messages
            .iter()
            .enumerate()
            .filter(|(_, message)| !is_done(message))
        {
            left += 1;
            match message.key.as_deref() {
                Some(key) => {
                    let sequence = *by_key.entry(key).or_insert(sequences.len());
                    if sequence == sequences.len() {
                        sequences.push(VecDeque::new());
                    }
                    sequences[sequence].push_back(index);
                }
                None => sequences.push(VecDeque::from([index])),
            }
        }
        Self { sequences, left }
    }

    /// Returns the numbers of all sequences, in the order of their first effects.
    pub(super) fn all(&self) -> impl Iterator<Item = usize> + use<> {
        0..self.sequences.len()
    }

    /// Returns the indexes of all effects that are not done.
    pub(super) fn indexes(&self) -> impl Iterator<Item = usize> {
        self.sequences.iter().flatten().copied()
    }

    /// Returns the index of the next effect of a sequence.
    pub(super) fn next_of(&self, sequence: usize) -> Option<usize> {
        self.sequences[sequence].front().copied()
    }

    /// Removes the next effect of a sequence, because it is done. Returns whether the sequence has
    /// another effect.
    pub(super) fn advance(&mut self, sequence: usize) -> bool {
        if self.sequences[sequence].pop_front().is_some() {
            self.left -= 1;
        }
        !self.sequences[sequence].is_empty()
    }

    /// Returns whether every effect is done.
    pub(super) fn is_empty(&self) -> bool {
        self.left == 0
    }
}
