//! Appends rows to the outbox.

pub mod floor;

use self::floor::Numbers;
use crate::errors::{Error, Result};
use crate::identity::Identity;
use crate::pg::{self, Appender, Lookup, Scratch, Table};
use crate::ring::Ring;
use crate::settings;
use crate::sql_types::jsonb_datum;
use crate::wake;
use idem_core::partition_hash;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::ffi::CString;
use uuid::Uuid;

/// The message that an effect belongs to: the effect was recorded with the claim of this message.
/// An effect of idem_send has no source.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    pub destination: i32,
    pub key: &'a idem_core::Key,
}

/// A row of the outbox before it has a sequence number.
pub struct Effect<'a> {
    pub source: Option<Source<'a>>,
    /// The time of the claim. For idem_send, the start of the transaction.
    pub recorded_at: pg_sys::TimestampTz,
    pub ordinal: i32,
    pub message_id: Uuid,
    pub topic: &'a str,
    pub key: Option<&'a str>,
    pub kind: Option<&'a str>,
    pub payload: &'a [u8],
    pub content_type: &'a str,
    /// The text of a JSON object.
    pub headers: Option<&'a str>,
    pub traceparent: Option<&'a str>,
    pub deliver_after: Option<pg_sys::TimestampTz>,
}

/// The current slice of the outbox, open for appending. [`finish`](Self::finish) wakes the relays.
pub struct Appending {
    slice: Appender,
    numbers: Numbers,
    tx: u64,
    /// The trace context of the session.
    inherited: Option<String>,
    scratch: Scratch,
    appended: usize,
}

impl Appending {
    pub fn new(outbox: &Ring) -> Result<Self> {
        let numbers = Numbers::new()?;
        // Assign the transaction id before the first sequence number is taken. Relays rely on this:
        // a transaction that had no id at a snapshot has only numbers above the sequence's value at
        // that snapshot.
        let tx = pg::transaction_id();
        Ok(Appending {
            slice: Appender::open(outbox.current().table),
            numbers,
            tx,
            inherited: settings::traceparent(),
            scratch: Scratch::new(),
            appended: 0,
        })
    }

    pub fn append(&mut self, effect: &Effect) -> Result<()> {
        check_for_interrupts!();
        self.appended += 1;
        let Appending {
            slice,
            numbers,
            tx,
            inherited,
            ..
        } = self;
        self.scratch
            .with(|| append_effect(slice, effect, numbers, *tx, inherited.as_deref()))
    }

    /// Appends a recorded row again: the same message, marked as a replay, with a new number.
    pub fn append_again(&mut self, row: &[Option<pg_sys::Datum>]) -> Result<()> {
        check_for_interrupts!();
        self.appended += 1;
        let mut row = row.to_vec();
        row[column::SEQ as usize - 1] = self.numbers.next()?.into_datum();
        row[column::TX as usize - 1] = Some(pg_sys::Datum::from(self.tx));
        row[column::REPLAY as usize - 1] = true.into_datum();
        let slice = &mut self.slice;
        self.scratch.with(|| slice.append(&row));
        Ok(())
    }

    pub fn finish(self) {
        wake::wake_relays(self.appended);
    }
}

fn append_effect(
    slice: &mut Appender,
    effect: &Effect,
    numbers: &Numbers,
    tx: u64,
    inherited: Option<&str>,
) -> Result<()> {
    slice.append(&[
        numbers.next()?.into_datum(),
        Some(pg_sys::Datum::from(tx)),
        effect.recorded_at.into_datum(),
        effect.deliver_after.and_then(IntoDatum::into_datum),
        partition_hash(effect.key, &effect.message_id).into_datum(),
        effect.ordinal.into_datum(),
        effect.source.map(|s| s.destination).into_datum(),
        false.into_datum(),
        effect
            .source
            .and_then(|s| pgrx::Uuid::from_bytes(*s.key.bytes()).into_datum()),
        pgrx::Uuid::from_bytes(effect.message_id.into_bytes()).into_datum(),
        effect.topic.into_datum(),
        effect.key.into_datum(),
        effect.kind.into_datum(),
        effect.payload.into_datum(),
        effect.content_type.into_datum(),
        match effect.headers {
            Some(headers) => jsonb_datum(headers)?,
            None => None,
        },
        effect.traceparent.or(inherited).into_datum(),
    ]);
    Ok(())
}

/// The columns of a slice, by number (sql/schema/outbox.sql).
pub mod column {
    pub const SEQ: i32 = 1;
    pub const TX: i32 = 2;
    pub const RECORDED_AT: i32 = 3;
    pub const DELIVER_AFTER: i32 = 4;
    pub const ORDINAL: i32 = 6;
    pub const SOURCE_DESTINATION: i32 = 7;
    pub const REPLAY: i32 = 8;
    pub const MESSAGE_ID: i32 = 10;
    pub const TOPIC: i32 = 11;
    pub const KEY: i32 = 12;
    pub const KIND: i32 = 13;
    pub const PAYLOAD: i32 = 14;
    pub const CONTENT_TYPE: i32 = 15;
    pub const HEADERS: i32 = 16;
    pub const TRACEPARENT: i32 = 17;
}

/// Opens a slice with the index that finds the effects of a message.
pub fn by_source(slice: pg_sys::Oid) -> Result<Table> {
    let index = pg::relation_name(slice).and_then(|name| CString::new(name + "_source").ok());
    let index = index.ok_or(Error::Corrupt("a slice of the outbox was dropped"))?;
    Table::with_index(slice, &index, false)
}

/// Returns the scan keys of this index for the effects of a claim. The time comes first, so that
/// new entries go to the newest pages of the index.
pub fn claim_keys(
    identity: &Identity,
    claimed_at: pg_sys::TimestampTz,
) -> [pg_sys::ScanKeyData; 2] {
    let key = identity.key_datum().unwrap_or(pg_sys::Datum::from(0));
    [
        pg::equals(1, pg_sys::F_TIMESTAMPTZ_EQ, claimed_at.into()),
        pg::equals(2, pg_sys::F_UUID_EQ, key),
    ]
}

/// Returns whether an effect that these keys have found belongs to the message: the index does not
/// have the destination.
pub fn is_of(found: &Lookup, identity: &Identity) -> bool {
    let destination = found.column(column::SOURCE_DESTINATION);
    destination.map(|d| d.value() as i32) == Some(identity.destination.id)
}
