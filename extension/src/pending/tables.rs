//! Opens the current table of pending messages and locks it, so that it stays the current table.

use super::presence;
use crate::errors::Result;
use crate::pg::{self, Table};
use crate::ring::{self, Entered, Rings};
use pgrx::pg_sys;

/// Opens the current table and locks it for writing. No rotation happens while the lock is held,
/// because a rotation locks both tables ACCESS EXCLUSIVE. The lock is released when the returned
/// value is dropped, unless the caller keeps it.
pub fn try_current(rings: &Rings) -> Result<Table> {
    let mut current = rings.pending();
    loop {
        let table = Table::for_trying(current);
        // Taking the lock processed the invalidation of every rotation that was committed before.
        let now = ring::refreshed()?.pending();
        if now == current {
            return Ok(table);
        }
        current = now;
    }
}

/// Opens the current table for a writer: locks it until the end of the transaction and notes that a
/// message may be pending.
pub fn current(rings: &Entered) -> Result<Table> {
    let table = try_to_write(rings)?;
    table.keep_lock();
    Ok(table)
}

/// Like [`current`], but the lock is released when the returned value is dropped, unless the caller
/// keeps it. The caller must keep it after a write.
pub fn try_to_write(rings: &Entered) -> Result<Table> {
    let table = try_current(rings)?;
    presence::note();
    Ok(table)
}

/// Opens a table of pending messages with an index other than the primary key, for look-ups. The
/// caller must have locked the table.
pub fn by_index(table: pg_sys::Oid, kind: IndexKind) -> Result<Table> {
    let is_first = pg::relation_oid(c"pending_0") == Some(table);
    let index = match (is_first, kind) {
        (true, IndexKind::Due) => c"pending_0_due",
        (true, IndexKind::Order) => c"pending_0_order",
        (false, IndexKind::Due) => c"pending_1_due",
        (false, IndexKind::Order) => c"pending_1_order",
    };
    Table::with_index(table, index, false)
}

/// The indexes other than the primary key.
#[derive(Debug, Clone, Copy)]
pub enum IndexKind {
    /// On (destination, due_at, seq).
    Due,
    /// On (destination, order_key, state, seq).
    Order,
}
