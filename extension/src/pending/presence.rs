//! Whether any message is pending, known without a look at the tables: most databases have claims
//! and no pending messages.
//!
//! A writer locks the current table of pending messages and notes `SOME` before it writes. The
//! maintainer notes `QUIET` when it finds no pending message, and `NONE` at a later pass if nothing
//! has been noted in between and it holds ACCESS EXCLUSIVE on both tables. A claim inserts its row
//! first and reads the note after that; a lease notes first and looks at the inbox after that. So
//! at least the later of the two sees the other.
//!
//! After the start of the server, after a promotion and without preloading the note is `SOME`.

use crate::errors::{given, invalid};
use crate::shared::this_database;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::sync::atomic::{Ordering, fence};

const SOME: u32 = 0;
const QUIET: u32 = 1;
const NONE: u32 = 2;
/// The names of the notes in SQL.
const NAMES: [&str; 3] = ["some", "quiet", "none"];

/// Notes that there may be a pending message. The caller holds the lock of a writer.
pub fn note() {
    if let Some(database) = this_database()
        && database.pending.load(Ordering::SeqCst) != SOME
    {
        database.pending.store(SOME, Ordering::SeqCst);
    }
    // The look at the inbox that follows must not come before the note.
    fence(Ordering::SeqCst);
}

/// Whether there may be a pending message. The caller has written its claim.
pub fn may_exist() -> bool {
    fence(Ordering::SeqCst);
    this_database().is_none_or(|database| database.pending.load(Ordering::SeqCst) != NONE)
}

/// The CHECK constraint of both tables calls this for rows that do not come from the functions of
/// idem: COPY, INSERT, logical replication. It runs before the row exists.
#[pg_extern(
    requires = ["schema"],
    sql = r#"
CREATE FUNCTION idem.note_pending(seq bigint) RETURNS boolean LANGUAGE c AS 'MODULE_PATHNAME', 'note_pending_wrapper';
"#
)]
fn note_pending(_seq: Option<i64>) -> bool {
    note();
    true
}

/// What is noted now.
#[pg_extern(
    requires = ["schema"],
    sql = r#"
CREATE FUNCTION idem.pending_presence() RETURNS text LANGUAGE c AS 'MODULE_PATHNAME', 'pending_presence_wrapper';
"#
)]
fn pending_presence() -> &'static str {
    let noted = this_database().map_or(SOME, |database| database.pending.load(Ordering::SeqCst));
    NAMES.get(noted as usize).copied().unwrap_or(NAMES[0])
}

/// The maintainer notes `quiet`, and `none` only after `quiet`. A note of a writer in between
/// stays.
#[pg_extern(
    requires = ["schema"],
    sql = r#"
CREATE FUNCTION idem.set_pending_presence(note text) RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'set_pending_presence_wrapper';
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
