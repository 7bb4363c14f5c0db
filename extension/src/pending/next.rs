//! `idem_next`: leases received messages that are due and returns them with their payloads.
//!
//! An attempt is counted when its lease begins and not when it fails, so a crash of the consumer
//! counts. When a message crashes its consumer, the leases of all messages that were leased
//! together expire. So each message with an expired lease is then handed out alone, and a later
//! crash counts only for the message that causes it.
//!
//! For each destination only one session at a time hands out messages with ordering keys: it enters
//! the rings and locks the row of the destination until its transaction ends. Otherwise two
//! sessions could lease two messages of one key, because neither sees the uncommitted lease of the
//! other.

use super::acquire::next_token;
use super::due::Due;
use super::payloads::Payloads;
use super::policy::max_attempts;
use super::row::{LeaseState, Leased, column, errors};
use super::search::{Ended, Search, SearchResult, Visit};
use super::tables;
use crate::destination::{Destination, find};
use crate::errors::{Error, Result};
use crate::pg::{self, Appender, Hold, Lookup, Table, Walk, equals};
use crate::ring;
use idem_core::limits::LARGEST_PAYLOAD_BYTES;
use idem_core::{Failure, last_failure, note_failure};
use pgrx::prelude::*;
use pgrx::{FromDatum, Uuid, pg_sys};

type Columns = [Option<pg_sys::Datum>; 13];

/// Leases at most `at_most` messages for `lease` microseconds. They have at most `max_bytes` bytes
/// in total, but the first message is returned regardless of its size.
pub fn next(name: &str, lease: i64, at_most: usize, max_bytes: usize) -> Result<Vec<Columns>> {
    let rings = ring::look()?;
    let Some(destination) = find(name)? else {
        return Ok(Vec::new());
    };
    let table = tables::try_current(&rings)?;
    let mut call = Call {
        table: &table,
        destination,
        lease,
        at_most,
        max_attempts: max_attempts(&destination)?,
        holds_destination: false,
        payloads: Payloads::default(),
        bytes_left: max_bytes,
        taken: Vec::new(),
    };
    let mut found = call.search()?;
    if found.ended == Ended::NeedsDestination {
        call.lock_destination()?;
        found = call.search()?;
    }
    if !found.exhausted.is_empty() {
        call.make_dead_letters(found.exhausted)?;
        if call.taken.is_empty() {
            call.search()?;
        }
    }
    if !call.taken.is_empty() {
        table.keep_lock();
    }
    Ok(call.taken)
}

struct Call<'a> {
    table: &'a Table,
    destination: Destination,
    lease: i64,
    at_most: usize,
    max_attempts: i32,
    holds_destination: bool,
    payloads: Payloads,
    /// The number of bytes that further messages may have.
    bytes_left: usize,
    taken: Vec<Columns>,
}

impl Call<'_> {
    fn search(&mut self) -> Result<SearchResult> {
        let search = Search {
            table: self.table.oid(),
            destination: self.destination.id,
            now: pg::clock(),
            max_attempts: self.max_attempts,
            at_most: self.at_most,
            holds_destination: self.holds_destination,
        };
        let lease_until = search.now.saturating_add(self.lease);
        let Call {
            payloads,
            bytes_left,
            taken,
            ..
        } = self;
        let mut batch: Option<(i64, Appender)> = None;
        let table = search.table;
        search.run(&mut |message, row| {
            if !row.lock_row() {
                return Ok(Visit::Held);
            }
            let payload = payloads.find(
                message.state.payload_slice.unwrap_or_default(),
                message.state.seq,
            )?;
            if payload.bytes() > LARGEST_PAYLOAD_BYTES {
                return Ok(Visit::Unreturnable);
            }
            let size = payload.size();
            if size > *bytes_left && !taken.is_empty() {
                return Ok(Visit::TooLarge);
            }
            *bytes_left = bytes_left.saturating_sub(size);
            if batch.is_none() {
                batch = Some((next_token()?, Appender::open(table)));
            }
            if let Some((token, appender)) = &mut batch {
                let leased = take(message, row, *token, lease_until, appender)?;
                taken.push(columns_of(&leased, payload.read()?));
            }
            Ok(Visit::Taken)
        })
    }

    /// Locks the destination's row until the end of the transaction. Only the session with this
    /// lock leases messages with keys. Without it two sessions could each lease a message of the
    /// same key, because they do not see each other's leases.
    fn lock_destination(&mut self) -> Result<()> {
        // Enter the rings before locking the row: idem_configure also locks idem.ring first and the
        // row afterwards, so the two cannot deadlock.
        ring::enter()?;
        let destinations = Table::for_writing(pg::relation(c"destination")?);
        let mut row = Lookup::new(&destinations, 1);
        let mut key = [equals(1, pg_sys::F_INT4EQ, self.destination.id.into())];
        if row.hold(&mut key, true) != Hold::Held {
            return Err(Error::Corrupt("a destination has no row"));
        }
        self.holds_destination = true;
        Ok(())
    }

    fn make_dead_letters(&self, keys: Vec<Uuid>) -> Result<()> {
        let arguments = [
            self.destination.id.into(),
            keys.into(),
            self.max_attempts.into(),
        ];
        Spi::run_with_args("SELECT idem.make_dead_letters($1, $2, $3)", &arguments)
            .map_err(|_| Error::Corrupt("idem.make_dead_letters did not run"))
    }
}

/// A message that this function has leased.
struct Taken {
    row: Vec<Option<pg_sys::Datum>>,
    last_error: Option<String>,
    lease_expired: bool,
}

/// Leases the locked row.
fn take(
    message: &Due,
    row: &mut Walk,
    token: i64,
    due_at: pg_sys::TimestampTz,
    appender: &mut Appender,
) -> Result<Taken> {
    let lease_expired = message.state.lease == LeaseState::Leased;
    let before = errors(row.column(column::ERRORS));
    let noted = lease_expired.then(|| {
        note_failure(
            &before,
            pg::now_unix(),
            message.state.attempt,
            Failure::LeaseExpired,
        )
    });
    let leased = Leased {
        token: token.max(message.state.token + 1),
        due_at,
        attempt: message.state.attempt + 1,
        errors: noted.as_deref(),
        stops_claims: false,
    };
    let columns = leased.apply(row.row())?;
    appender.replace_walked(row, &columns);
    Ok(Taken {
        row: columns,
        last_error: last_failure(noted.as_deref().unwrap_or(&before)),
        lease_expired,
    })
}

/// Returns a row of the result.
fn columns_of(message: &Taken, payload: [Option<pg_sys::Datum>; 5]) -> Columns {
    let of_row = |number: i32| message.row[number as usize - 1];
    let [data, content_type, kind, headers, traceparent] = payload;
    [
        of_row(column::TOKEN),
        of_row(column::SEQ),
        of_row(column::ID).or_else(|| uuid_text(of_row(column::KEY))),
        of_row(column::ORDER_KEY),
        kind,
        data,
        content_type,
        headers,
        traceparent,
        of_row(column::ATTEMPT),
        of_row(column::RECEIVED_AT),
        message
            .last_error
            .as_deref()
            .and_then(IntoDatum::into_datum),
        message.lease_expired.into_datum(),
    ]
}

/// Returns the id of a message without a text id. Its id is a uuid, which is also its key.
fn uuid_text(key: Option<pg_sys::Datum>) -> Option<pg_sys::Datum> {
    // SAFETY: the datum is a uuid.
    let key: Uuid = unsafe { FromDatum::from_datum(key?, false)? };
    uuid::Uuid::from_bytes(*key.as_bytes())
        .to_string()
        .into_datum()
}
