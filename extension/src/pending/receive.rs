//! Receives messages durably: stores a message, so that its broker can remove it. The message is
//! processed later.

use super::acquire::next_seq;
use super::row::{LeaseState, NewRow, column};
use super::tables;
use crate::errors::{Error, Result};
use crate::identity::Identity;
use crate::inbox::{Inbox, InboxState};
use crate::pg::{self, Appender, Found, Inserted, Inserter, Lookup, Table, look_again};
use crate::ring;
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

/// Stores a message. Returns false if the message is already received, leased, dead or claimed.
/// Waits for another transaction that is writing the message.
pub fn receive(id: MessageId, name: &str, message: &Message) -> Result<bool> {
    let rings = ring::enter()?;
    let identity = Identity::intern(id, name, &rings)?;
    let inbox = Inbox::open(&identity, &rings);
    // Wait before the table is locked, so that no lock is held during the wait.
    if inbox.is_claimed(&identity)? {
        return Ok(false);
    }
    let table = tables::current(&rings)?;
    let (payloads, slice) = ring::refreshed()?.new_payloads();
    let mut row = Lookup::new(&table, 2);
    let inserted = look_again(|| {
        insert_if_unknown(&identity, &inbox, &mut row, &table, slice, message).transpose()
    })?;
    let Reception::Stored { seq } = inserted else {
        return Ok(false);
    };
    append_payload(payloads, seq, message)?;
    wake_consumers();
    Ok(true)
}

/// The result of storing a message.
enum Reception {
    /// The pending row is stored under this `seq`.
    Stored { seq: i64 },
    /// The message is already received, leased, dead or claimed.
    Known,
}

/// Inserts the pending row. Returns `None` if the caller must look again.
fn insert_if_unknown(
    identity: &Identity,
    inbox: &Inbox,
    row: &mut Lookup,
    table: &Table,
    slice: i16,
    message: &Message,
) -> Result<Option<Reception>> {
    match row.find(&mut identity.keys()) {
        Found::Nothing => (),
        // Another transaction that changes or deletes the committed row is not waited for. If it
        // deletes the row, it has claimed the message. In both cases the message must not be stored
        // again.
        Found::InProgress(writer) if !row.is_there() => {
            writer.wait();
            return Ok(None);
        }
        Found::Row | Found::InProgress(_) => {
            identity.check(row, column::ID)?;
            row.wait_for_flush();
            return Ok(Some(Reception::Known));
        }
    }
    let seq = next_seq()?;
    let columns = new_row(seq, slice, message).columns(identity)?;
    let inserted = Inserter::new(table).insert_if(&columns, || {
        Ok::<_, Error>(inbox.look(identity)? == InboxState::Free)
    })?;
    match inserted {
        Inserted::Yes => Ok(Some(Reception::Stored { seq })),
        Inserted::Taken => Ok(None),
        // The pending row was removed, so the claim does not wait for it, and waiting for the claim
        // is safe.
        Inserted::Withdrawn => Ok(inbox.is_claimed(identity)?.then_some(Reception::Known)),
    }
}

fn new_row<'a>(seq: i64, slice: i16, message: &Message<'a>) -> NewRow<'a> {
    let now = pg::clock();
    NewRow {
        seq,
        token: 0,
        // A message with a deliver_after in the past must not overtake earlier messages.
        due_at: message.deliver_after.map_or(now, |after| after.max(now)),
        received_at: now,
        attempt: 0,
        payload_slice: Some(slice),
        state: LeaseState::Ready,
        order_key: message.key,
    }
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
