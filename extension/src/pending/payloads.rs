//! The payloads of received messages. A pending message refers to the slice that holds its payload.
//!
//! Each function that stores a payload checks `idem.max_payload`, which is at most 256 MB: the text
//! of a `bytea` has twice as many bytes, and a row has at most 1 GB. A larger payload can only come
//! from a write around these functions. `idem_next` makes such a message a dead letter, and
//! `idem_relay_next` parks such an effect, so the messages behind it are returned.

use crate::errors::{Error, Result};
use crate::pg::{Lookup, Table, equals, size_of};
use crate::ring;
use idem_core::memory;
use pgrx::pg_sys;

/// The memory, in bytes, that must be available before a payload is read. If less memory were left,
/// PostgreSQL might be unable to report the error.
const MARGIN_BYTES: usize = 1024 * 1024;

/// The columns of idem.payload_N, counted from 1.
mod column {
    pub const PAYLOAD: i32 = 2;
    pub const HEADERS: i32 = 5;
}

/// The slices of payloads. Each slice is opened when a message first refers to it.
#[derive(Default)]
pub struct Payloads {
    slices: Vec<(i16, Table)>,
}

impl Payloads {
    /// Finds the payload of a pending message. The caller must have locked the message, so that no
    /// other transaction moves its payload to another slice.
    pub fn find(&mut self, slice: i16, seq: i64) -> Result<Payload<'_>> {
        let mut rows = Lookup::insert_only(self.slice(slice)?, 1);
        let seq = equals(1, pg_sys::F_INT8EQ, pg_sys::Datum::from(seq));
        rows.seek(&mut [seq]);
        if !rows.next_existing() {
            return Err(Error::Corrupt("a pending message has no payload"));
        }
        Ok(Payload { row: rows })
    }

    fn slice(&mut self, number: i16) -> Result<&Table> {
        let at = match self.slices.iter().position(|(slice, _)| *slice == number) {
            Some(at) => at,
            None => {
                let table = ring::refreshed()?.payloads(number).ok_or(Error::Corrupt(
                    "a pending message refers to a payload slice that does not exist",
                ))?;
                self.slices.push((number, Table::for_reading(table)));
                self.slices.len() - 1
            }
        };
        Ok(&self.slices[at].1)
    }
}

/// A row of a slice of payloads.
pub struct Payload<'t> {
    row: Lookup<'t>,
}

impl Payload<'_> {
    /// Returns the size of the payload and its headers in bytes, without reading values that are
    /// stored out of line.
    pub fn size(&self) -> usize {
        self.bytes() + self.size_of(column::HEADERS)
    }

    /// Returns the size of the payload in bytes.
    pub fn bytes(&self) -> usize {
        self.size_of(column::PAYLOAD)
    }

    fn size_of(&self, number: i32) -> usize {
        let value = self.row.column(number);
        // SAFETY: the columns of payload and headers are of variable length.
        value.map_or(0, |value| unsafe { size_of(value) })
    }

    /// Returns copies of payload, content type, type, headers and traceparent.
    pub fn read(&self) -> Result<[Option<pg_sys::Datum>; 5]> {
        memory::ensure(MARGIN_BYTES).map_err(Error::from)?;
        let columns = self.row.row();
        Ok(std::array::from_fn(|n| {
            columns.get(n + 1).copied().flatten()
        }))
    }
}
