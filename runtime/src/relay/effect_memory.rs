//! Remembers the failures and confirmations of effects that a partition has not acknowledged.

use std::collections::BTreeMap;

use idem_client::relay::OutgoingMessage;
use uuid::Uuid;

/// Remembers failures and confirmations of effects beyond the end of a lease. So a lease that ends
/// before its batch is done does not reset the number of attempts, and an effect that the broker
/// has confirmed is not published again by the same process.
///
/// An effect is identified by its number in the outbox and its message id. The number alone is not
/// unique: a database that loses its last commits (a standby promoted with loss) assigns their
/// numbers again. The message id alone is not unique either, because an effect may be sent again
/// with the same id.
#[derive(Debug)]
pub(super) struct EffectMemory {
    known: BTreeMap<Name, Known>,
    at_most: usize,
}

type Name = (i64, Uuid);

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    failures: u32,
    is_confirmed: bool,
}

impl EffectMemory {
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

    /// Counts a failure. Returns the number of failures.
    pub(super) fn failed(&mut self, effect: &OutgoingMessage) -> u32 {
        let known = self.of(effect);
        known.failures = known.failures.saturating_add(1);
        known.failures
    }

    /// Forgets an effect that is acknowledged or parked. If it is leased again, it counts as new.
    pub(super) fn forget(&mut self, effect: &OutgoingMessage) {
        self.known.remove(&name(effect));
    }

    fn of(&mut self, effect: &OutgoingMessage) -> &mut Known {
        let name = name(effect);
        if self.known.len() >= self.at_most && !self.known.contains_key(&name) {
            // Forget the oldest effect. It most likely belongs to a batch that another process has
            // taken over.
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

    /// A forgotten effect has no failures. The memory forgets the oldest effects when it reaches
    /// its limit.
    #[test]
    fn forgotten_effect_counts_as_new_and_memory_is_limited() {
        let mut memory = EffectMemory::new(2);
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

    /// A confirmation counts only for the effect with both the same number and the same message id.
    #[test]
    fn effect_with_the_same_number_or_id_is_distinct() {
        let mut memory = EffectMemory::new(10);
        memory.confirmed(&effect(7, 1));
        assert!(memory.is_confirmed(&effect(7, 1)));
        assert!(
            !memory.is_confirmed(&effect(7, 2)),
            "the database has lost the first effect and assigned its number again"
        );
        assert!(
            !memory.is_confirmed(&effect(8, 1)),
            "the effect was sent again"
        );
    }
}
