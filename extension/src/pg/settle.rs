//! The state of a key after the transactions that were writing its row have ended.

use super::{Found, Lookup, look_again};
use pgrx::pg_sys;

/// The state of a key that no other transaction is writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    Nothing,
    /// The row is committed, or this transaction wrote it. Its columns can be read.
    Row,
    /// Another transaction is writing the row, and the caller does not wait.
    Busy,
}

impl Lookup<'_> {
    /// Finds the only row under a unique key. If `wait` is true, waits for transactions that are
    /// inserting or deleting it.
    pub fn settle(&mut self, keys: &mut [pg_sys::ScanKeyData], wait: bool) -> Settled {
        look_again(|| match self.find(keys) {
            Found::Nothing => Some(Settled::Nothing),
            Found::Row => Some(Settled::Row),
            Found::InProgress(_) if !wait => Some(Settled::Busy),
            Found::InProgress(writer) => {
                writer.wait();
                None
            }
        })
    }
}
