//! The faults of each message. They are drawn from the seed and the message, and do not depend on
//! the clock or on the order of threads.

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::{Rates, message::Message};

/// The time between two commands that are sent one after the other, in units of virtual time.
pub const STEP: u64 = 1_000;

/// The number of the last delivery of a message in which a fault can happen. With this limit every
/// run ends.
const LAST_FAULTY_DELIVERY: u16 = 3;

/// Draws the faults of one run.
#[derive(Clone, Debug)]
pub struct Fates {
    seed: u64,
    rates: Rates,
}

/// The faults of one delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fate {
    /// The point at which the consumer is killed, if it is killed.
    pub kill: Option<Kill>,
    /// Whether the acknowledgement of the consumer is lost.
    pub ack_lost: bool,
    /// The delay of a redelivery, in units of virtual time.
    pub again_after: u64,
}

/// The ways to kill a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kill {
    /// The backend is terminated during the transaction.
    BackendTerminated,
    /// The connection is dropped during the transaction, without a Terminate message.
    ConnectionCut,
    /// The consumer is killed after its commit, before it publishes or acknowledges anything.
    AfterCommit,
}

impl Fates {
    /// Creates a value that draws the faults of this seed with these rates.
    #[must_use]
    pub fn new(seed: u64, rates: Rates) -> Self {
        Self { seed, rates }
    }

    /// Returns the delay of each copy of a message, in units of virtual time after it was sent.
    /// `publication` is the number of messages of this kind that were published about the same
    /// attempt or move, including this one.
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

    /// Returns the faults of this delivery of this copy. The first delivery has the number 1.
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
