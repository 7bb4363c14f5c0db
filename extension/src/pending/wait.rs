//! `idem_next_wait`: waits until `idem_next` can return a message.

use super::policy::max_attempts;
use super::search::{Search, Visit};
use super::{due, tables};
use crate::destination::find;
use crate::errors::Result;
use crate::identity::scan_keys;
use crate::pg::{self, Found, Latest, Lookup, sleep_ms};
use crate::ring;
use crate::wake::{MESSAGES, WaiterSlot, left_ms};
use pgrx::IntoDatum;
use std::time::Instant;

/// The first and the longest sleep, in milliseconds, of a waiter that no other backend can wake.
const POLL_MS: (i64, i64) = (10, 1_000);
/// The longest sleep, in milliseconds, while other transactions hold due messages: a rollback wakes
/// no waiter.
const CONTENDED_MS: i64 = 100;

/// Waits until `idem_next` can return a message of the destination, but not after the deadline.
/// Returns true if it can.
///
/// Without a slot in shared memory no other backend can wake the waiter, so it polls at growing
/// intervals.
pub fn wait(destination: &str, deadline: Instant) -> Result<bool> {
    // Take the slot before the first search, so that a later commit wakes this backend.
    let slot = WaiterSlot::take(MESSAGES);
    let mut poll_ms = POLL_MS.0;
    loop {
        let look = look(destination)?;
        if look.has_work {
            return Ok(true);
        }
        let left_ms = left_ms(deadline);
        if left_ms <= 0 {
            return Ok(false);
        }
        let mut pause_ms = left_ms;
        if let Some(due_in_ms) = look.due_in_ms {
            pause_ms = pause_ms.min(due_in_ms);
        }
        if look.is_contended {
            pause_ms = pause_ms.min(CONTENDED_MS);
        }
        if slot.is_none() {
            pause_ms = pause_ms.min(poll_ms);
            poll_ms = (poll_ms * 2).min(POLL_MS.1);
        }
        sleep_ms(pause_ms.max(1));
    }
}

struct Look {
    /// Whether idem_next would lease a message or move a message to the dead letters.
    has_work: bool,
    /// Whether another transaction holds a due message.
    is_contended: bool,
    /// The time until the next message becomes due, in milliseconds.
    due_in_ms: Option<i64>,
}

impl Look {
    const NOTHING: Look = Look {
        has_work: false,
        is_contended: false,
        due_in_ms: None,
    };
}

/// Searches as idem_next does, without locking rows. No lock is kept, so that a waiter does not
/// delay a rotation.
fn look(name: &str) -> Result<Look> {
    let rings = ring::look()?;
    let Some(destination) = find(name)? else {
        return Ok(Look::NOTHING);
    };
    let table = tables::try_current(&rings)?;
    let search = Search {
        table: table.oid(),
        destination: destination.id,
        now: pg::clock(),
        max_attempts: max_attempts(&destination)?,
        at_most: 1,
        holds_destination: true,
    };
    let mut rows = Lookup::new(&table, 2);
    let mut has_work = false;
    let found = search.run(&mut |_, row| {
        // A row that a running transaction has leased or deleted is not available.
        let key = row.column(super::row::column::KEY);
        if rows.find(&mut scan_keys(key, destination.id)) == Found::Row {
            has_work = true;
            return Ok(Visit::Taken);
        }
        Ok(Visit::Held)
    })?;
    let mut is_contended = found.is_contended;
    for key in found.exhausted {
        match rows.find(&mut scan_keys(key.into_datum(), destination.id)) {
            // idem_next will move the message to the dead letters.
            Found::Row => has_work = true,
            _ => is_contended = true,
        }
    }
    Ok(Look {
        has_work,
        is_contended,
        due_in_ms: next_due(&search)?,
    })
}

/// Returns the time, in milliseconds, until the next message becomes due. Messages that are due
/// already are skipped.
fn next_due(search: &Search) -> Result<Option<i64>> {
    let snapshot = Latest::take();
    let table = tables::by_index(search.table, tables::IndexKind::Due)?;
    let mut messages = due::DueIndex::new(&table, &snapshot, search.destination);
    messages.seek(search.now.saturating_add(1), i64::MAX - 1);
    Ok(messages
        .next()
        .map(|message| message.state.due_at.saturating_sub(search.now) / 1_000 + 1))
}
