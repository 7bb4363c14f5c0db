//! Stores in shared memory whether a message may be pending, so that most claims need not read the
//! tables of pending messages. Most databases have claims and no pending messages.
//!
//! The stored value is called the note. A writer locks the current table of pending messages and
//! sets the note to `SOME` before it writes. The maintainer sets `QUIET` when it finds no pending
//! message. In a later pass the maintainer locks both tables ACCESS EXCLUSIVE and sets `NONE`, if
//! the note is still `QUIET`. A claim inserts its row and then reads the note. A lease sets the
//! note and then checks the inbox. So at least the later of the two sees the earlier.
//!
//! The note is `SOME` after the start of the server, after a promotion and without preloading.

use crate::errors::{given, invalid};
use crate::shared::this_database;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::sync::atomic::{Ordering, fence};

const SOME: u32 = 0;
const QUIET: u32 = 1;
const NONE: u32 = 2;
/// The names of the values in SQL.
const NAMES: [&str; 3] = ["some", "quiet", "none"];

/// Notes that there may be a pending message. The caller must hold the lock of a writer.
pub fn note() {
    if let Some(database) = this_database()
        && database.pending.load(Ordering::SeqCst) != SOME
    {
        database.pending.store(SOME, Ordering::SeqCst);
    }
    // The check of the inbox that follows must not be reordered before the note.
    fence(Ordering::SeqCst);
}

/// Returns whether there may be a pending message. The caller must have written its claim.
pub fn may_exist() -> bool {
    fence(Ordering::SeqCst);
    this_database().is_none_or(|database| database.pending.load(Ordering::SeqCst) != NONE)
}

/// Sets the note for rows that COPY, INSERT or logical replication write without the functions of
/// idem. The CHECK constraint of both tables calls this function before the row is stored.
#[pg_extern(
    requires = ["schema"],
    sql = r#"
CREATE FUNCTION idem.note_pending(seq bigint) RETURNS boolean
LANGUAGE c AS 'MODULE_PATHNAME', 'note_pending_wrapper';
"#
)]
fn note_pending(_seq: Option<i64>) -> bool {
    note();
    true
}

/// Returns the present note.
#[pg_extern(
    requires = ["schema"],
    sql = r#"
CREATE FUNCTION idem.pending_presence() RETURNS text
LANGUAGE c AS 'MODULE_PATHNAME', 'pending_presence_wrapper';
"#
)]
fn pending_presence() -> &'static str {
    let noted = this_database().map_or(SOME, |database| database.pending.load(Ordering::SeqCst));
    NAMES.get(noted as usize).copied().unwrap_or(NAMES[0])
}

/// Sets the note to `quiet` if it is `some`, or to `none` if it is `quiet`. Otherwise keeps the
/// note, because a writer has set it in between. The maintainer calls this function.
#[pg_extern(
    requires = ["schema"],
    sql = r#"
CREATE FUNCTION idem.set_pending_presence(note text) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'set_pending_presence_wrapper';
"#
)]
fn set_pending_presence(note: Option<&str>) -> std::result::Result<(), ErrorReport> {
    let (from, to) = match given(note, "note")? {
        "quiet" => (SOME, QUIET),
        "none" => (QUIET, NONE),
        other => invalid(format!("note is \"{other}\""), "Give quiet or none.")?,
    };
    if let Some(database) = this_database() {
        let _ = database
            .pending
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
    }
    Ok(())
}
