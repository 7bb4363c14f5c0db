//! Receives messages durably: stores a message, so that its broker can remove it. The message is
//! processed later.
//!
//! A receiver first waits for a claim in progress of the message, also if the message is already
//! received. After a commit of the claim the message is known. Otherwise the pending row decides:
//!
//! - No row: the receiver writes a speculative one. Other transactions wait for it.
//! - A row without a payload that is not dead, of a message that a consumer of a broker has leased
//!   or failed: the payload is stored with this row, which keeps its lease and its attempts, and
//!   gets a new `seq`. The receiver waits for a transaction that is claiming or completing the
//!   message, because its rollback would leave the message nowhere.
//! - A row with a payload, or a dead row: the message is known.

use super::acquire::next_seq;
use super::row::{LeaseState, NewRow, Received, State, column};
use super::tables;
use crate::errors::{Error, Result};
use crate::identity::Identity;
use crate::inbox::{Inbox, InboxState};
use crate::pg::{self, Appender, Found, Hold, Inserted, Inserter, Lookup, Table, look_again};
use crate::ring::{self, Entered};
use crate::settings;
use crate::sql_types::jsonb_datum;
use crate::wake::wake_consumers;
use idem_core::MessageId;
use pgrx::pg_sys;
use pgrx::prelude::*;

/// A message as it was received.
pub struct Message<'a> {
    pub payload: &'a [u8],
    pub content_type: &'a str,
    pub kind: Option<&'a str>,
    /// Messages with the same key are processed in order.
    pub key: Option<&'a str>,
    /// The text of a JSON object.
    pub headers: Option<&'a str>,
    pub traceparent: Option<String>,
    pub deliver_after: Option<pg_sys::TimestampTz>,
}

/// Stores a message. Returns false if the message is already received, dead or claimed, so that no
/// copy at its broker is needed. A lease of `idem_acquire` and a message that waits for a retry
/// have a pending row without a payload: the message is stored in this row. Waits for another
/// transaction that is writing the message.
pub fn receive(id: MessageId, name: &str, message: &Message) -> Result<bool> {
    let rings = ring::enter()?;
    let identity = Identity::intern(id, name, &rings)?;
    let inbox = Inbox::open(&identity, &rings);
    look_again(|| store_unless_claimed(&identity, &inbox, &rings, message).transpose())
}

/// Stores a message, unless it is already received, dead or claimed. Returns whether it was stored,
/// or `None` if the caller must look again.
fn store_unless_claimed(
    identity: &Identity,
    inbox: &Inbox,
    rings: &Entered,
    message: &Message,
) -> Result<Option<bool>> {
    // Wait for a claim in progress before the table is locked, so that a rotation of the table does
    // not have to wait for this lock.
    if inbox.is_claimed(identity)? {
        return Ok(Some(false));
    }
    let table = tables::try_to_write(rings)?;
    let (payloads, slice) = ring::refreshed()?.new_payloads();
    let mut row = Lookup::new(&table, 2);
    match store_if_unknown(identity, inbox, &mut row, &table, slice, message)? {
        None => Ok(None),
        Some(Reception::Known) => Ok(Some(false)),
        Some(Reception::Stored { seq }) => {
            table.keep_lock();
            append_payload(payloads, seq, message)?;
            wake_consumers();
            Ok(Some(true))
        }
    }
}

/// The result of storing a message.
enum Reception {
    /// The pending row is stored under this `seq`.
    Stored { seq: i64 },
    /// The message is already received, dead or claimed.
    Known,
}

/// Stores the message in its pending row, which is inserted if there is none. Returns `None` if the
/// caller must look again.
fn store_if_unknown(
    identity: &Identity,
    inbox: &Inbox,
    row: &mut Lookup,
    table: &Table,
    slice: i16,
    message: &Message,
) -> Result<Option<Reception>> {
    let mut keys = identity.keys();
    match row.find(&mut keys) {
        Found::Nothing => return insert(identity, inbox, table, slice, message),
        Found::Row => (),
        // The committed row has the message. The other transaction can delete this row only
        // together with a claim. If it rolls back, the row stays.
        Found::InProgress(_) if row.is_there() && State::read(row).has_message() => (),
        // The committed row, if there is one, does not have the message. If the other transaction
        // rolls back, this transaction must store the message. The other transaction has locked the
        // table too, so a rotation does not have to wait for longer.
        Found::InProgress(writer) => {
            writer.wait();
            return Ok(None);
        }
    }
    identity.check(row, column::ID)?;
    if State::read(row).has_message() {
        row.wait_for_flush();
        return Ok(Some(Reception::Known));
    }
    // The inbox need not be checked again. A committed claim would have deleted this row, and a
    // claim in progress locks this row after its insert into the inbox.
    if row.hold(&mut keys, true) != Hold::Held || State::read(row).has_message() {
        return Ok(None);
    }
    identity.check(row, column::ID)?;
    fill(row, table, slice, message).map(Some)
}

/// Inserts the pending row. Returns `None` if the caller must look again.
fn insert(
    identity: &Identity,
    inbox: &Inbox,
    table: &Table,
    slice: i16,
    message: &Message,
) -> Result<Option<Reception>> {
    let seq = next_seq()?;
    let columns = new_row(seq, slice, message).columns(identity)?;
    let inserted = Inserter::new(table).insert_if(&columns, || {
        Ok::<_, Error>(inbox.look(identity)? == InboxState::Free)
    })?;
    match inserted {
        Inserted::Yes => Ok(Some(Reception::Stored { seq })),
        // If the row was withdrawn, another transaction has claimed the message or is claiming it.
        // It does not wait for the row, which is removed, so the caller can wait for its claim.
        Inserted::Taken | Inserted::Withdrawn => Ok(None),
    }
}

fn new_row<'a>(seq: i64, slice: i16, message: &Message<'a>) -> NewRow<'a> {
    let now = pg::clock();
    NewRow {
        seq,
        token: 0,
        due_at: due_at(message, now),
        received_at: now,
        attempt: 0,
        payload_slice: Some(slice),
        state: LeaseState::Ready,
        order_key: message.key,
    }
}

/// Returns the time at which a received message is due. A message with a `deliver_after` in the
/// past must not overtake earlier messages.
fn due_at(message: &Message, now: pg_sys::TimestampTz) -> pg_sys::TimestampTz {
    message.deliver_after.map_or(now, |after| after.max(now))
}

/// Stores the message in the locked row, which has no payload. Attempts, errors and lease are kept:
/// the holder of a lease may still complete the message, and `idem_next` returns the message after
/// the end of the lease or of the back-off. A message that its sender delays beyond the back-off
/// does not wait for a retry, so it does not delay other messages of its ordering key.
fn fill(row: &Lookup, table: &Table, slice: i16, message: &Message) -> Result<Reception> {
    let state = State::read(row);
    let now = pg::clock();
    let wanted = due_at(message, now);
    // deliver_after must not make a lease longer.
    let is_delayed = state.lease != LeaseState::Leased && wanted > state.due_at;
    let received = Received {
        seq: next_seq()?,
        due_at: if is_delayed { wanted } else { state.due_at },
        lease: if is_delayed {
            LeaseState::Ready
        } else {
            state.lease
        },
        received_at: now,
        payload_slice: slice,
        order_key: message.key,
    };
    Appender::open(table.oid()).replace(row, &received.apply(row.row()));
    Ok(Reception::Stored { seq: received.seq })
}

fn append_payload(slice: pg_sys::Oid, seq: i64, message: &Message) -> Result<()> {
    let inherited = settings::traceparent();
    let headers = match message.headers {
        Some(headers) => jsonb_datum(headers)?,
        None => None,
    };
    Appender::open(slice).append(&[
        seq.into_datum(),
        message.payload.into_datum(),
        message.content_type.into_datum(),
        message.kind.into_datum(),
        headers,
        message
            .traceparent
            .as_deref()
            .or(inherited.as_deref())
            .into_datum(),
    ]);
    Ok(())
}
