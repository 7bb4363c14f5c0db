//! Stores in shared memory whether a message may be pending, so that most claims need not read the
//! tables of pending messages. Most databases have claims and no pending messages.
//!
//! The stored value is called the note. A writer locks the current table of pending messages and
//! sets the note to `SOME` before it writes. The maintainer sets `QUIET` when it finds no pending
//! message. In a later pass the maintainer locks both tables ACCESS EXCLUSIVE and sets `NONE`, if
//! the note is still `QUIET`. A claim inserts its row and then reads the note. A lease sets the
//! note and then checks the inbox. So at least the later of the two sees the earlier.
//!
//! The note is `SOME` after the start of the server and after a promotion.

use crate::shared::this_database;
use std::sync::atomic::{self, Ordering};

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
    atomic::fence(Ordering::SeqCst);
}

/// Returns whether there may be a pending message. The caller must have written its claim.
pub fn may_exist() -> bool {
    atomic::fence(Ordering::SeqCst);
    is_noted()
}

/// Returns whether the note says that there may be a pending message. A writer may change the note
/// at the same time, so a claimer calls [`may_exist`] after it has written its claim.
pub fn is_noted() -> bool {
    this_database().is_none_or(|database| database.pending.load(Ordering::SeqCst) != NONE)
}

/// Returns the present note, as SQL names it.
pub fn name() -> &'static str {
    let noted = this_database().map_or(SOME, |database| database.pending.load(Ordering::SeqCst));
    NAMES.get(noted as usize).copied().unwrap_or(NAMES[0])
}

/// Sets the note to `quiet` if it is `some`, and keeps `none`. The maintainer calls this function.
pub fn set_quiet() {
    replace(SOME, QUIET);
}

/// Sets the note to `none` if it is `quiet`. Otherwise keeps the note, because a writer has set it
/// to `some` in between. The maintainer calls this function.
pub fn set_none() {
    replace(QUIET, NONE);
}

fn replace(from: u32, to: u32) {
    if let Some(database) = this_database() {
        let _ = database
            .pending
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
    }
}
