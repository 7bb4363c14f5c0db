//! Reads the effects of a message from every slice, in their latest committed state: a transaction
//! in REPEATABLE READ that finds a duplicate must also get effects that were committed after its
//! snapshot.

use crate::claim::claim_of;
use crate::errors::Result;
use crate::outbox::{by_source, claim_keys, column, is_of};
use crate::pg::Lookup;
use crate::ring;
use idem_core::{MessageId, memory};
use pgrx::pg_sys;

/// Rows are copied one by one. After this number of rows the reader checks again that
/// `MARGIN_BYTES` can be allocated.
const BETWEEN_CHECKS: usize = 64;
const MARGIN_BYTES: usize = 16 * 1024 * 1024;

/// Returns the rows of the effects that were recorded with the present claim, ordered by ordinal. A
/// row has all columns of the outbox; `None` is NULL. By-reference values are copies in the current
/// memory context.
pub fn recorded(id: MessageId, destination: &str) -> Result<Vec<Vec<Option<pg_sys::Datum>>>> {
    idem_core::check_destination(destination)?;
    // A claim and its effects have the same time. If an earlier claim of this message was
    // forgotten, the effects of that claim may still be stored, but they have an earlier time.
    let Some((identity, claimed_at)) = claim_of(id, destination)? else {
        return Ok(Vec::new());
    };
    // The loop below reads all slices of the outbox, so it does not matter which one is current.
    let rings = ring::look()?;
    let mut rows = Vec::new();
    for slice in rings.outbox.all() {
        let table = by_source(slice.table)?;
        if table.is_empty() {
            continue;
        }
        let mut lookup = Lookup::insert_only(&table, 2);
        lookup.seek(&mut claim_keys(&identity, claimed_at));
        while lookup.next_existing() {
            pgrx::check_for_interrupts!();
            if rows.len() % BETWEEN_CHECKS == 0 {
                memory::ensure(MARGIN_BYTES)?;
            }
            let replay = lookup
                .column(column::REPLAY)
                .is_some_and(|d| d.value() & 1 == 1);
            if is_of(&lookup, &identity) && !replay {
                memory::push(&mut rows, lookup.row())?;
            }
        }
    }
    rows.sort_unstable_by_key(|row| {
        row[column::ORDINAL as usize - 1].map_or(0, |d| d.value() as i32)
    });
    Ok(rows)
}
