//! The identity of a pending message.

use crate::claim::{check_same_message, identity_keys, uuid_datum};
use crate::destination::Destination;
use crate::errors::Result;
use crate::pg::Lookup;
use idem_core::MessageId;
use pgrx::{FromDatum, pg_sys};

/// A message and its destination.
#[derive(Clone, Copy)]
pub struct Identity<'a> {
    pub id: MessageId<'a>,
    pub destination: Destination,
    pub name: &'a str,
}

impl Identity<'_> {
    /// Returns the scan keys of the primary key of an inbox slice or of a table of pending
    /// messages.
    pub fn keys(&self) -> [pg_sys::ScanKeyData; 2] {
        identity_keys(&self.id.key, self.destination.id)
    }

    pub fn key_datum(&self) -> Option<pg_sys::Datum> {
        uuid_datum(&self.id.key)
    }

    /// Fails with 23000 unless the found pending row belongs to this message.
    pub fn check_pending(&self, found: &Lookup) -> Result<()> {
        // SAFETY: the column is text; the copy is made before the next look-up.
        let text = unsafe {
            found
                .column(super::row::column::ID)
                .and_then(|d| String::from_datum(d, false))
        };
        check_same_message(text, &self.id, self.name)
    }
}
