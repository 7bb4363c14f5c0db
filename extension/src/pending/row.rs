//! A pending row, as sql/schema/pending.sql declares it.

use crate::errors::{Error, Result};
use crate::identity::Identity;
use crate::pg::{Lookup, Walk};
use crate::sql_types::{JsonText, jsonb_datum};
use pgrx::prelude::*;
use pgrx::{FromDatum, pg_sys};

type Columns = Vec<Option<pg_sys::Datum>>;

pub mod column {
    pub const SEQ: i32 = 1;
    pub const TOKEN: i32 = 2;
    pub const DUE_AT: i32 = 3;
    pub const RECEIVED_AT: i32 = 4;
    pub const KEY: i32 = 5;
    pub const ATTEMPT: i32 = 7;
    pub const PAYLOAD_SLICE: i32 = 8;
    pub const STATE: i32 = 9;
    pub const STOPS_CLAIMS: i32 = 10;
    pub const ID: i32 = 11;
    pub const ORDER_KEY: i32 = 12;
    pub const ERRORS: i32 = 13;
}

/// The values of the column `state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseState {
    Ready,
    Leased,
    Waiting,
    Dead,
}

impl LeaseState {
    /// Returns the value in the table.
    fn code(self) -> u8 {
        match self {
            LeaseState::Ready => b'r',
            LeaseState::Leased => b'l',
            LeaseState::Waiting => b'w',
            LeaseState::Dead => b'd',
        }
    }

    fn from_code(code: u8) -> Self {
        match code {
            b'r' => LeaseState::Ready,
            b'l' => LeaseState::Leased,
            b'w' => LeaseState::Waiting,
            b'd' => LeaseState::Dead,
            _ => Error::Corrupt("a pending message has an unknown state").raise(),
        }
    }

    pub fn datum(self) -> pg_sys::Datum {
        pg_sys::Datum::from(self.code())
    }
}

/// The columns of a row for a new identity.
pub struct NewRow<'a> {
    pub seq: i64,
    pub token: i64,
    pub due_at: pg_sys::TimestampTz,
    pub received_at: pg_sys::TimestampTz,
    pub attempt: i32,
    pub payload_slice: Option<i16>,
    pub state: LeaseState,
    pub order_key: Option<&'a str>,
}

impl NewRow<'_> {
    pub fn columns(&self, identity: &Identity) -> Result<Columns> {
        Ok(vec![
            self.seq.into_datum(),
            self.token.into_datum(),
            self.due_at.into_datum(),
            self.received_at.into_datum(),
            identity.key_datum(),
            identity.destination.id.into_datum(),
            self.attempt.into_datum(),
            self.payload_slice.into_datum(),
            Some(self.state.datum()),
            // Only idem_acquire inserts a leased row, and its leases stop claims.
            (self.state == LeaseState::Leased).into_datum(),
            identity.id.text.into_datum(),
            self.order_key.into_datum(),
            jsonb_datum("[]")?,
        ])
    }
}

/// The state of a found row.
#[derive(Debug, Clone)]
pub struct State {
    pub seq: i64,
    pub token: i64,
    pub due_at: pg_sys::TimestampTz,
    pub attempt: i32,
    pub payload_slice: Option<i16>,
    pub lease: LeaseState,
    pub stops_claims: bool,
}

impl State {
    pub fn read(found: &Lookup) -> Self {
        Self::from_columns(|number| found.column(number))
    }

    pub fn read_walked(walk: &Walk) -> Self {
        Self::from_columns(|number| walk.column(number))
    }

    fn from_columns(column: impl Fn(i32) -> Option<pg_sys::Datum>) -> Self {
        let number = |n| match column(n) {
            Some(datum) => datum.value() as i64,
            None => Error::Corrupt("a pending message lacks a value").raise(),
        };
        State {
            seq: number(column::SEQ),
            token: number(column::TOKEN),
            due_at: number(column::DUE_AT),
            attempt: number(column::ATTEMPT) as i32,
            payload_slice: column(column::PAYLOAD_SLICE).map(|d| d.value() as i16),
            lease: LeaseState::from_code(number(column::STATE) as u8),
            stops_claims: number(column::STOPS_CLAIMS) & 1 == 1,
        }
    }

    pub fn is_dead(&self) -> bool {
        self.lease == LeaseState::Dead
    }

    /// Returns whether the database has the content of the message: its payload, or its dead
    /// letter. Otherwise only the broker has it.
    pub fn has_message(&self) -> bool {
        self.payload_slice.is_some() || self.is_dead()
    }
}

/// Returns the errors of a row, as JSON.
pub fn errors(datum: Option<pg_sys::Datum>) -> String {
    // SAFETY: the column is a jsonb; the copy is made before the scan moves.
    let errors = unsafe { datum.and_then(|d| JsonText::from_datum(d, false)) };
    errors.map_or_else(|| "[]".to_owned(), |errors| errors.as_str().to_owned())
}

/// The columns that a lease changes.
pub struct Leased<'a> {
    pub token: i64,
    pub due_at: pg_sys::TimestampTz,
    pub attempt: i32,
    /// `None` keeps the errors of the row.
    pub errors: Option<&'a str>,
    /// Whether the lease is one of `idem_acquire`, which stops claims.
    pub stops_claims: bool,
}

impl Leased<'_> {
    /// Returns the row with the lease.
    pub fn apply(&self, mut row: Columns) -> Result<Columns> {
        let mut set = |column: i32, value| row[column as usize - 1] = value;
        set(column::TOKEN, self.token.into_datum());
        set(column::DUE_AT, self.due_at.into_datum());
        set(column::ATTEMPT, self.attempt.into_datum());
        set(column::STATE, Some(LeaseState::Leased.datum()));
        set(column::STOPS_CLAIMS, self.stops_claims.into_datum());
        if let Some(errors) = self.errors {
            set(column::ERRORS, jsonb_datum(errors)?);
        }
        Ok(row)
    }
}

/// The columns that change when a message with a pending row is received.
pub struct Received<'a> {
    pub seq: i64,
    pub due_at: pg_sys::TimestampTz,
    pub lease: LeaseState,
    pub received_at: pg_sys::TimestampTz,
    pub payload_slice: i16,
    pub order_key: Option<&'a str>,
}

impl Received<'_> {
    /// Returns the row with the message.
    pub fn apply(&self, mut row: Columns) -> Columns {
        let mut set = |column: i32, value| row[column as usize - 1] = value;
        set(column::SEQ, self.seq.into_datum());
        set(column::DUE_AT, self.due_at.into_datum());
        set(column::STATE, Some(self.lease.datum()));
        set(column::RECEIVED_AT, self.received_at.into_datum());
        set(column::PAYLOAD_SLICE, self.payload_slice.into_datum());
        set(column::ORDER_KEY, self.order_key.into_datum());
        row
    }
}
