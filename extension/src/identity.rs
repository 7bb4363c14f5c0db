//! The identity of a message: its id and its destination. Claims, leases and received messages are
//! stored by identity.

use crate::destination::{self, Destination};
use crate::errors::{Error, Result};
use crate::pg::{Lookup, equals};
use crate::ring::Entered;
use idem_core::MessageId;
use pgrx::prelude::*;
use pgrx::{FromDatum, pg_sys};

/// A message and its destination.
#[derive(Clone, Copy)]
pub struct Identity<'a> {
    pub id: MessageId<'a>,
    pub destination: Destination,
    /// The name of the destination, as the caller gave it.
    pub name: &'a str,
}

impl<'a> Identity<'a> {
    /// Creates the destination if it does not exist.
    pub fn intern(id: MessageId<'a>, name: &'a str, rings: &Entered) -> Result<Self> {
        let destination = destination::intern(name, rings)?;
        Ok(Identity {
            id,
            destination,
            name,
        })
    }

    /// Returns `None` if the destination does not exist.
    pub fn find(id: MessageId<'a>, name: &'a str) -> Result<Option<Self>> {
        let destination = destination::find(name)?;
        Ok(destination.map(|destination| Identity {
            id,
            destination,
            name,
        }))
    }

    /// Returns the scan keys of an index that begins with the key and the destination.
    pub fn keys(&self) -> [pg_sys::ScanKeyData; 2] {
        scan_keys(self.key_datum(), self.destination.id)
    }

    pub fn key_datum(&self) -> Option<pg_sys::Datum> {
        pgrx::Uuid::from_bytes(*self.id.key.bytes()).into_datum()
    }

    /// Fails with 23000 unless the row that was found under the key belongs to this message. Two
    /// ids can have the same key, and the second id must never be treated as a duplicate.
    /// `id_column` is the number of the column with the text id.
    pub fn check(&self, found: &Lookup, id_column: i32) -> Result<()> {
        // SAFETY: the column is text; the copy is made before the next look-up.
        let text = unsafe {
            found
                .column(id_column)
                .and_then(|d| String::from_datum(d, false))
        };
        ensure_same_id(text.as_deref(), &self.id, self.name)
    }
}

/// Fails with 23000 unless a row with the key of `id` belongs to `id`. `text` is the text id of the
/// row, which is null for a uuid.
pub fn ensure_same_id(text: Option<&str>, id: &MessageId, destination: &str) -> Result<()> {
    if text == id.text {
        return Ok(());
    }
    Err(Error::KeyTaken {
        destination: destination.to_owned(),
        taken_by: text.map_or_else(|| "a uuid".to_owned(), |text| format!("\"{text}\"")),
    })
}

/// Returns the scan keys of an index that begins with a key (a uuid) and a destination.
pub fn scan_keys(key: Option<pg_sys::Datum>, destination: i32) -> [pg_sys::ScanKeyData; 2] {
    let key = key.unwrap_or(pg_sys::Datum::from(0));
    [
        equals(1, pg_sys::F_UUID_EQ, key),
        equals(2, pg_sys::F_INT4EQ, destination.into()),
    ]
}
