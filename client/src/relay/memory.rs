//! What a partition remembers of its effects while they are not acknowledged.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::OutgoingMessage;

/// A lease that ends in the middle of a batch resets nothing, and what the broker has confirmed is
/// not published again by the same process.
///
/// The number in the outbox alone does not tell effects apart: a database that loses its last
/// commits (a standby promoted with loss) gives their numbers to others. Nor does the message id,
/// under which an effect may be sent again.
#[derive(Debug)]
pub(super) struct Memory {
    known: BTreeMap<Name, Known>,
    at_most: usize,
}

type Name = (i64, Uuid);

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    failures: u32,
    is_confirmed: bool,
}

impl Memory {
    pub(super) fn new(at_most: usize) -> Self {
        Self {
            known: BTreeMap::new(),
            at_most,
        }
    }

    pub(super) fn is_confirmed(&self, effect: &OutgoingMessage) -> bool {
        self.known
            .get(&name(effect))
            .is_some_and(|known| known.is_confirmed)
    }

    pub(super) fn confirmed(&mut self, effect: &OutgoingMessage) {
        self.of(effect).is_confirmed = true;
    }

    /// Counts a failure; answers how many there were.
    pub(super) fn failed(&mut self, effect: &OutgoingMessage) -> u32 {
        let known = self.of(effect);
        known.failures = known.failures.saturating_add(1);
        known.failures
    }

    /// It is acknowledged or parked. Should it come again, it comes as a new one.
    pub(super) fn forget(&mut self, effect: &OutgoingMessage) {
        self.known.remove(&name(effect));
    }

    fn of(&mut self, effect: &OutgoingMessage) -> &mut Known {
        let name = name(effect);
        if self.known.len() >= self.at_most && !self.known.contains_key(&name) {
            // The oldest: of a batch that another process has taken over, most likely.
            self.known.pop_first();
        }
        self.known.entry(name).or_default()
    }
}

fn name(effect: &OutgoingMessage) -> Name {
    (effect.seq, effect.message_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(seq: i64, id: u128) -> OutgoingMessage {
        let mut effect = OutgoingMessage::new(Uuid::from_u128(id), "t", "");
        effect.seq = seq;
        effect
    }

    #[test]
    fn what_is_forgotten_starts_anew_and_the_memory_has_a_limit() {
        let mut memory = Memory::new(2);
        let seventh = effect(7, 7);
        assert_eq!(memory.failed(&seventh), 1);
        assert_eq!(memory.failed(&seventh), 2);
        memory.confirmed(&seventh);
        assert!(memory.is_confirmed(&seventh) && !memory.is_confirmed(&effect(8, 8)));
        memory.forget(&seventh);
        assert!(!memory.is_confirmed(&seventh));
        assert_eq!(memory.failed(&seventh), 1);
        memory.forget(&seventh);
        let all: Vec<_> = (1..=5).map(|n| effect(n, 1)).collect();
        for effect in &all {
            memory.confirmed(effect);
        }
        assert_eq!(
            all.iter()
                .filter(|effect| memory.is_confirmed(effect))
                .count(),
            2
        );
    }

    #[test]
    fn another_effect_under_the_same_number_or_the_same_id_is_not_taken_for_this_one() {
        let mut memory = Memory::new(10);
        memory.confirmed(&effect(7, 1));
        assert!(memory.is_confirmed(&effect(7, 1)));
        assert!(
            !memory.is_confirmed(&effect(7, 2)),
            "the database has lost the first, and given its number away"
        );
        assert!(!memory.is_confirmed(&effect(8, 1)), "it was sent once more");
    }
}
