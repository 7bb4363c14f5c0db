//! What goes wrong with which message: drawn from the seed and the message, never from the clock or
//! the order of threads.

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::{Rates, message::Message};

/// The distance of two commands that are sent one after the other, in virtual time.
pub const STEP: u64 = 1_000;

/// From this delivery on everything goes well, so that every run ends.
const LAST_FAULTY_DELIVERY: u16 = 3;

/// Draws the faults of one run.
#[derive(Clone, Debug)]
pub struct Fates {
    seed: u64,
    rates: Rates,
}

/// What befalls one delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fate {
    /// The consumer dies.
    pub kill: Option<Kill>,
    /// The consumer acknowledges and nobody hears it.
    pub ack_lost: bool,
    /// How much later it comes again, should it have to.
    pub again_after: u64,
}

/// How a consumer dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kill {
    /// In the middle of its transaction: its backend is terminated.
    BackendTerminated,
    /// In the middle of its transaction: its connection breaks without a word.
    ConnectionCut,
    /// After its commit and before it could say so to anyone.
    AfterCommit,
}

impl Fates {
    /// The faults of this seed at these rates.
    #[must_use]
    pub fn new(seed: u64, rates: Rates) -> Self {
        Self { seed, rates }
    }

    /// How much later than sent each copy of a message arrives. `publication` counts how often its
    /// subject was published.
    #[must_use]
    pub fn copies(&self, message: &Message, publication: u32) -> Vec<u64> {
        let mut dice = self.dice(message, publication, 0, 0);
        let mut copies = vec![self.lateness(&mut dice)];
        if dice.random_bool(self.rates.duplicates) {
            for _ in 0..dice.random_range(1..=2) {
                copies.push(self.lateness(&mut dice) + dice.random_range(1..=60 * STEP));
            }
        }
        copies
    }

    /// What befalls this delivery of this copy.
    #[must_use]
    pub fn delivery(&self, message: &Message, publication: u32, copy: u8, delivery: u16) -> Fate {
        let mut dice = self.dice(message, publication, copy + 1, delivery);
        let faulty = delivery <= LAST_FAULTY_DELIVERY;
        let kill = dice
            .random_bool(self.rates.kill)
            .then(|| match dice.random_range(0..3) {
                0 => Kill::BackendTerminated,
                1 => Kill::ConnectionCut,
                _ => Kill::AfterCommit,
            });
        Fate {
            kill: kill.filter(|_| faulty),
            ack_lost: faulty && dice.random_bool(self.rates.ack_loss),
            again_after: dice.random_range(STEP..=80 * STEP),
        }
    }

    fn lateness(&self, dice: &mut StdRng) -> u64 {
        let mut late = 0;
        if dice.random_bool(self.rates.reorder) {
            late += dice.random_range(STEP..=8 * STEP);
        }
        if dice.random_bool(self.rates.delay) {
            late += dice.random_range(20 * STEP..=200 * STEP);
        }
        late
    }

    fn dice(&self, message: &Message, publication: u32, copy: u8, delivery: u16) -> StdRng {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.seed.to_le_bytes());
        seed[8..24].copy_from_slice(message.subject.as_bytes());
        seed[24..28].copy_from_slice(&publication.to_le_bytes());
        seed[28..30].copy_from_slice(&delivery.to_le_bytes());
        seed[30] = copy;
        seed[31] = message.kind as u8;
        StdRng::from_seed(seed)
    }
}
