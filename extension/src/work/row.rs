//! One row of work, as sql/32_work.sql declares it.

use super::identity::Identity;
use crate::pg::Lookup;
use crate::sql_types::JsonText;
use pgrx::prelude::*;
use pgrx::{FromDatum, pg_sys};

type Columns = Vec<Option<pg_sys::Datum>>;

mod column {
    pub const TOKEN: i32 = 2;
    pub const DUE_AT: i32 = 3;
    pub const ATTEMPT: i32 = 7;
    pub const BODY: i32 = 8;
    pub const LEASED: i32 = 9;
    pub const ERRORS: i32 = 12;
}

/// The columns of a row whose identity is new here.
pub struct NewRow<'a> {
    pub seq: i64,
    pub token: i64,
    pub due_at: pg_sys::TimestampTz,
    pub received_at: pg_sys::TimestampTz,
    pub attempt: i32,
    pub body: Option<i16>,
    pub leased: bool,
    pub order_key: Option<&'a str>,
}

impl NewRow<'_> {
    pub fn columns(&self, identity: &Identity) -> crate::errors::Result<Columns> {
        Ok(vec![
            self.seq.into_datum(),
            self.token.into_datum(),
            self.due_at.into_datum(),
            self.received_at.into_datum(),
            identity.key_datum(),
            identity.destination.id.into_datum(),
            self.attempt.into_datum(),
            self.body.into_datum(),
            self.leased.into_datum(),
            identity.id.text.into_datum(),
            self.order_key.into_datum(),
            crate::sql_types::jsonb_datum("[]")?,
        ])
    }
}

/// What a found row says.
#[derive(Debug)]
pub struct State {
    pub token: i64,
    pub due_at: pg_sys::TimestampTz,
    pub attempt: i32,
    pub has_body: bool,
    pub leased: bool,
}

impl State {
    pub fn read(found: &Lookup) -> Self {
        let number = |column| found.column(column).map_or(0, |d| d.value() as i64);
        State {
            token: number(column::TOKEN),
            due_at: number(column::DUE_AT),
            attempt: number(column::ATTEMPT) as i32,
            has_body: found.column(column::BODY).is_some(),
            leased: number(column::LEASED) & 1 == 1,
        }
    }

    /// It is among the dead letters.
    pub fn is_dead(&self) -> bool {
        self.due_at == i64::MAX
    }
}

/// The errors that the found row keeps, as JSON.
pub fn errors(found: &Lookup) -> String {
    // SAFETY: the column is a jsonb; the copy is made before the next look-up.
    let errors = unsafe { found.column(column::ERRORS).and_then(|d| JsonText::from_datum(d, false)) };
    errors.map_or_else(|| "[]".to_owned(), |errors| errors.as_str().to_owned())
}

/// The held row with a new lease.
pub fn leased_anew(
    held: &Lookup,
    token: i64,
    due_at: pg_sys::TimestampTz,
    attempt: i32,
    errors: &str,
) -> crate::errors::Result<Columns> {
    let mut row = held.row();
    let mut set = |column: i32, value| row[column as usize - 1] = value;
    set(column::TOKEN, token.into_datum());
    set(column::DUE_AT, due_at.into_datum());
    set(column::ATTEMPT, attempt.into_datum());
    set(column::LEASED, true.into_datum());
    set(column::ERRORS, crate::sql_types::jsonb_datum(errors)?);
    Ok(row)
}
