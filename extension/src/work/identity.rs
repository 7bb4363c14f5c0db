//! Whose work it is.

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
    /// The scan keys of a primary key of inbox or work.
    pub fn keys(&self) -> [pg_sys::ScanKeyData; 2] {
        identity_keys(&self.id.key, self.destination.id)
    }

    pub fn key_datum(&self) -> Option<pg_sys::Datum> {
        uuid_datum(&self.id.key)
    }

    /// The row of work that was found is this message's, or 23000.
    pub fn check_work(&self, found: &Lookup) -> Result<()> {
        /// The column `id` of idem.work_N.
        const ID: i32 = 10;
        // SAFETY: the column is text; the copy is made before the next look-up.
        let text = unsafe { found.column(ID).and_then(|d| String::from_datum(d, false)) };
        check_same_message(text, &self.id, self.name)
    }
}
