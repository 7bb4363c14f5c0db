//! The order of the faults, which the seed determines.

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};

use super::faults::Kind;

/// The order of the faults, in rounds. Every round has each kind once, in a new random order. The
/// first round begins with poison, which takes the longest time.
pub struct Plan {
    dice: StdRng,
    round: Vec<Kind>,
}

impl Plan {
    /// Creates the plan for this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut plan = Self {
            dice: StdRng::seed_from_u64(seed ^ 0xC4A0_5000),
            round: Vec::new(),
        };
        plan.shuffle();
        plan.round.sort_by_key(|kind| *kind == Kind::Poison);
        plan
    }

    fn shuffle(&mut self) {
        self.round = Kind::ALL.to_vec();
        self.round.shuffle(&mut self.dice);
    }

    /// Returns a random number generator for the details of the faults.
    #[must_use]
    pub fn dice(&mut self) -> StdRng {
        StdRng::seed_from_u64(self.dice.random())
    }
}

impl Iterator for Plan {
    type Item = Kind;

    /// Returns the next fault. There always is one.
    fn next(&mut self) -> Option<Kind> {
        if self.round.is_empty() {
            self.shuffle();
        }
        self.round.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round has each kind once, the first round begins with poison, and the seed determines the
    /// order.
    #[test]
    fn round_has_each_fault_once_in_seeded_order() {
        let count = Kind::ALL.len();
        let round: Vec<Kind> = Plan::new(7).take(count).collect();
        let mut kinds = round.clone();
        kinds.sort_unstable();
        kinds.dedup();
        assert_eq!(kinds.len(), count);
        assert_eq!(round[0], Kind::Poison);
        assert_eq!(round, Plan::new(7).take(count).collect::<Vec<_>>());
        assert_ne!(round, Plan::new(8).take(count).collect::<Vec<_>>());
    }
}
