//! The row of a claim in a slice of the inbox, as sql/schema/claims.sql declares it.

use crate::identity::Identity;
use crate::pg::Segment;
use pgrx::pg_sys;
use pgrx::prelude::*;

/// The columns, numbered from 1.
pub mod column {
    pub const KEY: i32 = 1;
    pub const CLAIMED_AT: i32 = 2;
    pub const DESTINATION: i32 = 3;
    pub const ID: i32 = 5;
    pub const FINGERPRINT: i32 = 6;
}

const COLUMNS: usize = 6;

/// The bytes of each column of a claim with a uuid: its text id and its fingerprint are NULL.
pub const WIDTHS: [i32; COLUMNS] = [16, 8, 4, 2, 1, 1];

/// Returns the row of a claim in this segment.
pub fn claim_row(
    identity: &Identity,
    claimed_at: pg_sys::TimestampTz,
    segment: Segment,
    fingerprint: Option<&[u8]>,
) -> [Option<pg_sys::Datum>; COLUMNS] {
    [
        identity.key_datum(),
        claimed_at.into_datum(),
        identity.destination.id.into_datum(),
        segment.into_datum(),
        identity.id.text.into_datum(),
        fingerprint.into_datum(),
    ]
}
