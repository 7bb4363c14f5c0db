//! The lists of transactions for which a fence or a filter waits.

/// A claimer, by its position, or the copier.
pub type Transaction = u8;
pub const COPIER: Transaction = 7;

/// The transactions of a list that have not ended (`idem.lockers`, `Lockers::of`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lockers(u8);

impl Lockers {
    pub const NONE: Lockers = Lockers(0);

    pub fn add(&mut self, transaction: Transaction) {
        self.0 |= 1 << transaction;
    }

    /// Removes a transaction that has ended (`idem.still_running`, `Lockers::have_ended`).
    pub fn remove(&mut self, transaction: Transaction) {
        self.0 &= !(1 << transaction);
    }

    pub fn have_ended(&self) -> bool {
        self.0 == 0
    }
}
