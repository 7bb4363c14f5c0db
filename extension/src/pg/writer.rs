//! A transaction that is writing a row, and how to wait for it. `look_again` is the loop of the
//! functions that look a row up again after this wait; `settle.rs` is one of them.
//!
//! Some loops do not use `look_again`: `ring::enter` and `pending::tables` lock a table and check
//! that it is still the current one, and waiters and fences poll until a deadline.

use pgrx::pg_sys;

/// Another transaction, which is inserting or deleting a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Writer {
    pub(super) xid: pg_sys::TransactionId,
    /// Not 0 while the insertion is speculative.
    pub(super) speculative_token: u32,
    pub(super) write: Write,
}

/// What a writer does with its row. If a key has several writers, the result of a look-up depends
/// on the first of them in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Write {
    /// It deletes a committed row.
    Deletes,
    Inserts,
    /// It has inserted the row and deleted it again.
    Retracts,
}

impl Writer {
    /// Returns whether the row was committed before. Otherwise it is a new row.
    pub fn deletes(self) -> bool {
        self.write == Write::Deletes
    }

    /// Returns whether the writer has inserted the row and deleted it again. Such a row is never
    /// committed.
    pub fn retracts(self) -> bool {
        self.write == Write::Retracts
    }

    /// Waits until the transaction ends, or until its speculative insertion is decided. The caller
    /// must have no page pinned, and hold no lock that the transaction may wait for.
    pub fn wait(self) {
        // SAFETY: both functions accept any xid and raise an error on cancel and lock_timeout. The
        // relation and the TID are null, because they are only used in the context of error
        // messages.
        unsafe {
            if self.speculative_token != 0 {
                pg_sys::SpeculativeInsertionWait(self.xid, self.speculative_token);
            } else {
                pg_sys::XactLockTableWait(
                    self.xid,
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                    pg_sys::XLTW_Oper::XLTW_None,
                );
            }
        }
    }
}

/// Calls `look` until it returns a value. `look` returns `None` if what it has read may be
/// outdated, for example because it has waited for another transaction.
pub fn look_again<T>(mut look: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(result) = look() {
            return result;
        }
        pgrx::check_for_interrupts!();
    }
}
