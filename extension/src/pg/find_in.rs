//! Looks a key up in several insert-only tables: the slices in which its row can be.
//!
//! A transaction that entered the rings before a rotation can have a row in a sealed slice, and
//! wait in the current slice for the transaction that has the row of the same key there. It deletes
//! its own row if the other transaction commits. So if the row exists in one slice, a row in
//! progress in another slice does not matter. Without this rule, the two transactions could wait
//! for each other. The same is true within one slice: a claimer whose ordinary insert conflicted
//! has deleted its row, which stays in progress beside the row of the other claimer.

use super::{Found, Lookup, Writer};
use pgrx::pg_sys;
use std::borrow::BorrowMut;

/// The state of a key in several slices. `L` is a look-up or a reference to one.
pub enum FoundIn<L> {
    Nothing,
    /// The row is committed, or this transaction wrote it. Its columns can be read.
    Row(L),
    /// The row exists in no slice, and another transaction is inserting or deleting it.
    InProgress(Writer),
}

/// Finds the row under a unique key in the first slice that has it. The look-ups must be
/// insert-only.
pub fn find_in<'t, L: BorrowMut<Lookup<'t>>>(
    slices: impl IntoIterator<Item = L>,
    keys: &mut [pg_sys::ScanKeyData],
) -> FoundIn<L> {
    scan_in(slices, keys, |_| (), |_| true)
}

/// Calls `visit` for each row that exists under the keys, until it returns true. The keys are the
/// first columns of a unique index, and `rest` returns the other columns of this index. The result
/// is `InProgress` if a row that another transaction is inserting or deleting exists in no slice.
/// If there are several such rows, their writers have the order of [`Write`](super::writer::Write),
/// and the result contains the first one.
pub fn scan_in<'t, L: BorrowMut<Lookup<'t>>, K: PartialEq>(
    slices: impl IntoIterator<Item = L>,
    keys: &mut [pg_sys::ScanKeyData],
    rest: impl Fn(&Lookup<'t>) -> K,
    mut visit: impl FnMut(&Lookup<'t>) -> bool,
) -> FoundIn<L> {
    let mut existing = Vec::new();
    let mut in_progress = Vec::new();
    for mut slice in slices {
        let lookup = slice.borrow_mut();
        lookup.seek(keys);
        loop {
            match lookup.next() {
                Found::Nothing => break,
                Found::Row if visit(lookup) => {
                    lookup.unpin(Found::Row);
                    return FoundIn::Row(slice);
                }
                Found::Row => existing.push(rest(lookup)),
                Found::InProgress(writer) => in_progress.push((rest(lookup), writer)),
            }
        }
    }
    // A claimer that lost has deleted its row, and waits for another claimer. The result depends on
    // that claimer, so the caller waits for it too.
    in_progress
        .into_iter()
        .filter(|(row, _)| !existing.contains(row))
        .map(|(_, writer)| writer)
        .min_by_key(|writer| writer.write)
        .map_or(FoundIn::Nothing, FoundIn::InProgress)
}
