//! Acquires leases. A lease is committed before the message is processed. Its token is a fencing
//! token: it is greater than the tokens of all earlier leases.

use super::policy::max_attempts;
use super::row::{LeaseState, Leased, NewRow, State, column, errors};
use super::tables;
use crate::errors::{Error, Result};
use crate::identity::Identity;
use crate::inbox::{Inbox, InboxState};
use crate::pause::pause_point;
use crate::pg::{self, Appender, Hold, Inserted, Inserter, Lookup, Settled, Table, look_again};
use crate::ring;
use idem_core::{Failure, MessageId, is_final, last_failure, note_failure};
use pgrx::pg_sys;

/// The result of acquiring a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    Leased(Lease),
    /// The message is leased, but must not be processed: no attempt is left, or an error was final.
    Exhausted(Lease),
    Duplicate,
    /// Another transaction or lease holds the message, or it waits for a retry. Try again after
    /// this time, in microseconds.
    InProgress {
        retry_after: i64,
    },
    Dead,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub token: i64,
    pub attempt: i32,
    pub last_error: Option<String>,
}

/// The time, in microseconds, after which to try again when a running transaction is writing the
/// message.
const PAUSE: i64 = 1_000_000;
const BUSY: Acquired = Acquired::InProgress { retry_after: PAUSE };

/// Leases a message for `lease` microseconds. Never waits for another transaction that claims,
/// leases or receives the message.
pub fn acquire(id: MessageId, name: &str, lease: i64) -> Result<Acquired> {
    let rings = ring::enter()?;
    let identity = Identity::intern(id, name, &rings)?;
    let inbox = Inbox::open(&identity, &rings);
    if let Some(outcome) = blocked_by_claim(inbox.look(&identity)?) {
        return Ok(outcome);
    }
    let table = tables::current(&rings)?;
    let mut row = Lookup::new(&table, 2);
    look_again(|| first_or_next_lease(&identity, &inbox, &mut row, &table, lease).transpose())
}

/// Acquires the first lease of a message without a pending row, or the next lease of a message with
/// one. Returns `None` if another transaction inserted or deleted the row since it was looked up.
fn first_or_next_lease(
    identity: &Identity,
    inbox: &Inbox,
    row: &mut Lookup,
    table: &Table,
    lease: i64,
) -> Result<Option<Acquired>> {
    let mut keys = identity.keys();
    match row.settle(&mut keys, false) {
        Settled::Nothing => return first_lease(identity, inbox, table, lease),
        Settled::Busy => return Ok(Some(BUSY)),
        Settled::Row => identity.check(row, column::ID)?,
    }
    // Check this before the row is locked, so that a call before the due time writes nothing.
    if let Some(outcome) = not_due(row, &State::read(row)) {
        return Ok(Some(outcome));
    }
    match row.hold(&mut keys, false) {
        Hold::Nothing => Ok(None),
        Hold::Busy => Ok(Some(BUSY)),
        Hold::Held => next_lease(identity, inbox, row, table.oid(), lease).map(Some),
    }
}

/// Returns the outcome if a transaction has claimed the message or is claiming it. A claim takes
/// precedence over a lease.
fn blocked_by_claim(seen: InboxState) -> Option<Acquired> {
    match seen {
        InboxState::Free => None,
        InboxState::Claimed => Some(Acquired::Duplicate),
        InboxState::InProgress(_) => Some(BUSY),
    }
}

fn not_due(row: &Lookup, state: &State) -> Option<Acquired> {
    if state.is_dead() {
        row.wait_for_flush();
        return Some(Acquired::Dead);
    }
    let retry_after = state.due_at.saturating_sub(pg::clock());
    if retry_after > 0 {
        return Some(Acquired::InProgress { retry_after });
    }
    // Only idem_next leases received messages, which have a payload slice. A lease of such a
    // message does not stop a claim, so a lease that is acquired here would protect nothing.
    state.payload_slice.is_some().then_some(BUSY)
}

/// Creates the first lease of a message. Returns `None` if another transaction inserted the row
/// first.
fn first_lease(
    identity: &Identity,
    inbox: &Inbox,
    table: &Table,
    lease: i64,
) -> Result<Option<Acquired>> {
    let token = next_token()?;
    let now = pg::clock();
    let new = NewRow {
        seq: next_seq()?,
        token,
        due_at: now.saturating_add(lease),
        received_at: now,
        attempt: 1,
        payload_slice: None,
        state: LeaseState::Leased,
        order_key: None,
    };
    let mut seen = InboxState::Free;
    let inserted = Inserter::new(table).insert_if(&new.columns(identity)?, || {
        seen = inbox.look(identity)?;
        Ok::<_, Error>(seen == InboxState::Free)
    })?;
    Ok(match inserted {
        Inserted::Yes => Some(Acquired::Leased(Lease {
            token,
            attempt: 1,
            last_error: None,
        })),
        Inserted::Taken => None,
        Inserted::Withdrawn => blocked_by_claim(seen),
    })
}

/// Leases a message after this transaction has locked its row. Reads the state again, because it
/// may have changed before the row was locked.
fn next_lease(
    identity: &Identity,
    inbox: &Inbox,
    row: &mut Lookup,
    table: pg_sys::Oid,
    lease: i64,
) -> Result<Acquired> {
    let state = State::read(row);
    if let Some(outcome) = not_due(row, &state) {
        return Ok(outcome);
    }
    if let Some(outcome) = blocked_by_claim(inbox.look(identity)?) {
        return Ok(outcome);
    }
    let now = pg::clock();
    let mut errors = errors(row.column(column::ERRORS));
    if state.lease == LeaseState::Leased {
        errors = note_failure(
            &errors,
            pg::now_unix(),
            state.attempt,
            Failure::LeaseExpired,
        );
    }
    let is_exhausted = is_final(&errors) || state.attempt >= max_attempts(&identity.destination)?;
    let attempt = if is_exhausted {
        state.attempt
    } else {
        state.attempt + 1
    };
    let token = next_token()?.max(state.token + 1);
    let leased = Leased {
        token,
        due_at: now.saturating_add(lease),
        attempt,
        errors: Some(&errors),
        stops_claims: true,
    };
    pause_point("acquire: before update");
    Appender::open(table).replace(row, &leased.apply(row.row())?);
    let lease = Lease {
        token,
        attempt,
        last_error: last_failure(&errors),
    };
    Ok(if is_exhausted {
        Acquired::Exhausted(lease)
    } else {
        Acquired::Leased(lease)
    })
}

pub fn next_seq() -> Result<i64> {
    let sequence = pg::relation(c"pending_seq")?;
    Ok(pg::next_value(sequence))
}

pub fn next_token() -> Result<i64> {
    let sequence = pg::relation(c"lease_token_seq")?;
    Ok(pg::next_value(sequence))
}
