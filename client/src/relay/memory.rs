//! What a partition remembers of its effects while they are not acknowledged.

use std::collections::BTreeMap;

/// By number in the outbox: a lease that ends in the middle of a batch resets nothing, and what the broker has confirmed
/// is not published again by the same process.
#[derive(Debug)]
pub(super) struct Memory {
    known: BTreeMap<i64, Known>,
    at_most: usize,
}

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

    pub(super) fn is_confirmed(&self, seq: i64) -> bool {
        self.known.get(&seq).is_some_and(|known| known.is_confirmed)
    }

    pub(super) fn confirmed(&mut self, seq: i64) {
        self.of(seq).is_confirmed = true;
    }

    /// Counts a failure; answers how many there were.
    pub(super) fn failed(&mut self, seq: i64) -> u32 {
        let known = self.of(seq);
        known.failures = known.failures.saturating_add(1);
        known.failures
    }

    /// It is acknowledged or parked. Should it come again, it comes as a new one.
    pub(super) fn forget(&mut self, seq: i64) {
        self.known.remove(&seq);
    }

    fn of(&mut self, seq: i64) -> &mut Known {
        if self.known.len() >= self.at_most && !self.known.contains_key(&seq) {
            // The oldest: of a batch that another process has taken over, most likely.
            self.known.pop_first();
        }
        self.known.entry(seq).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forgotten_starts_anew_and_the_memory_has_a_limit() {
        let mut memory = Memory::new(2);
        assert_eq!(memory.failed(7), 1);
        assert_eq!(memory.failed(7), 2);
        memory.confirmed(7);
        assert!(memory.is_confirmed(7) && !memory.is_confirmed(8));
        memory.forget(7);
        assert!(!memory.is_confirmed(7));
        for seq in 1..=5 {
            memory.confirmed(seq);
        }
        assert_eq!((1..=5).filter(|seq| memory.is_confirmed(*seq)).collect::<Vec<_>>(), [4, 5]);
    }
}
