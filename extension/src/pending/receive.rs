//! Receives messages durably: stores a message, so that its broker can remove it. The message is
//! processed later.

use super::acquire::next_seq;
use super::identity::Identity;
use super::inbox::{Inbox, InboxState};
use super::row::{LeaseState, NewRow};
use super::tables;
use crate::destination::{Interned, intern};
use crate::errors::{Error, Result};
use crate::pg::{self, Appender, Found, Inserted, Inserter, Lookup, wait_for};
use crate::ring;
use crate::settings;
use crate::sql_types::jsonb_datum;
use crate::wake::messages_received;
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
    let destination = loop {
        if let Interned::Known(destination) = intern(name, true)? {
            break destination;
        }
    };
    let identity = Identity {
        id,
        destination,
        name,
    };
    let inbox = Inbox::open(&identity, &rings);
    let table = loop {
        match inbox.look(&identity)? {
            InboxState::Claimed => return Ok(false),
            // Wait before the table is locked, so that no lock is held during the wait.
            seen @ InboxState::InProgress { .. } => seen.wait(),
            InboxState::Free => break tables::current(&rings)?,
        }
        pgrx::check_for_interrupts!();
    };
    let (payloads, slice) = ring::refreshed()?.new_payloads();
    let mut row = Lookup::new(&table, 2);
    let mut keys = identity.keys();
    loop {
        match row.find(&mut keys) {
            Found::Row => {
                identity.check_pending(&row)?;
                row.rely();
                return Ok(false);
            }
            // Another transaction is deleting or changing the committed row. If it deletes the row,
            // it has claimed the message. In both cases the message must not be stored again.
            Found::InProgress { .. } if row.is_there() => {
                identity.check_pending(&row)?;
                row.rely();
                return Ok(false);
            }
            Found::InProgress {
                xid,
                speculative_token,
            } => {
                row.seek(&mut keys);
                wait_for(xid, speculative_token);
            }
            Found::Nothing => {
                let seq = next_seq()?;
                let mut seen = InboxState::Free;
                let inserted = Inserter::new(&table).insert_if(
                    &new_row(seq, slice, message).columns(&identity)?,
                    || {
                        seen = inbox.look(&identity)?;
                        Ok::<_, Error>(seen == InboxState::Free)
                    },
                )?;
                match (inserted, seen) {
                    (Inserted::Yes, _) => {
                        append_payload(payloads, seq, message)?;
                        messages_received();
                        return Ok(true);
                    }
                    (Inserted::Withdrawn, InboxState::Claimed) => return Ok(false),
                    // The pending row was removed, so the claim does not wait for it, and waiting
                    // for the claim is safe.
                    (Inserted::Withdrawn, seen) => seen.wait(),
                    (Inserted::Taken, _) => (),
                }
            }
        }
        pgrx::check_for_interrupts!();
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
