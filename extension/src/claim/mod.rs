//! The claim: the right to process a message. Only one transaction gets it.
//!
//! A claim looks its key up in the sealed slices, in the current slice and, while the ring is
//! opening, in the next slice. It then inserts a row into the current slice and, while the ring is
//! opening, into the next slice. The message is claimed if every insert succeeds and no lease
//! protects the message (see `pending`).

mod api;
mod inspect;
mod lone;
mod slices;

pub use api::{text_id, uuid_id};
pub use inspect::{claim_of, my_claim, slices_of};
pub use slices::Slices;

use crate::destination::{Destination, Interned, intern};
use crate::errors::{Error, Result};
use crate::pause::pause_point;
use crate::pending::{Identity, PendingCheck, PendingState};
use crate::pg::{self, Found, Inserter, Lookup, Scratch, wait_for};
use crate::ring::{self, Rings};
use crate::stats::{Counter, count};
use idem_core::{Key, MessageId};
use pgrx::pg_sys;
use pgrx::prelude::*;

/// The outcome of a claim. `handled_at` is the time of the earlier claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Claimed { claimed_at: pg_sys::TimestampTz },
    Duplicate { handled_at: pg_sys::TimestampTz },
    InProgress,
    Mismatch { handled_at: pg_sys::TimestampTz },
    Expired,
}

/// The options of a claim.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'a> {
    /// Whether to wait for a concurrent claimer. If false, the outcome is `InProgress` instead.
    pub wait: bool,
    /// The fingerprint that is stored with the claim. A duplicate with another fingerprint is a
    /// `Mismatch`.
    pub fingerprint: Option<&'a [u8]>,
    /// The time at which the sender sent the message. If the ring may have forgotten a claim of
    /// that time, the outcome is `Expired`.
    pub sent_at: Option<pg_sys::TimestampTz>,
    /// Whether this transaction has locked the row of the pending message and will delete it.
    pub holds_pending: bool,
}

impl Terms<'_> {
    pub const PLAIN: Terms<'static> = Terms {
        wait: true,
        fingerprint: None,
        sent_at: None,
        holds_pending: false,
    };
}

/// Claims one message.
pub fn claim(id: MessageId, destination: &str, terms: Terms) -> Result<Outcome> {
    let mut outcome = Outcome::InProgress;
    claim_each([&id].into_iter(), destination, terms, |new| outcome = new)?;
    Ok(outcome)
}

/// Claims a message. This transaction has locked its pending row. Does not wait for another
/// claimer: that claimer may wait for the row, which would be a deadlock.
pub fn claim_leased(id: MessageId, destination: &str) -> Result<Outcome> {
    let terms = Terms {
        wait: false,
        holds_pending: true,
        ..Terms::PLAIN
    };
    claim(id, destination, terms)
}

/// Claims messages of one destination in the given order. It must be the order of their keys, so
/// that two concurrent batches cannot deadlock. The second of two equal ids is a duplicate of the
/// first. Calls `tell` with the outcome of each message.
pub fn claim_each<'i>(
    ids: impl Iterator<Item = &'i MessageId<'i>>,
    destination: &str,
    terms: Terms,
    mut tell: impl FnMut(Outcome),
) -> Result<()> {
    let rings = ring::enter()?;
    let Interned::Known(known) = intern(destination, terms.wait)? else {
        ids.for_each(|_| {
            count(Counter::InProgress);
            tell(Outcome::InProgress);
        });
        return Ok(());
    };
    let slices = Slices::open(&known, &rings);
    let mut writer = ClaimWriter::new(&slices, known, destination, &rings, terms);
    let scratch = Scratch::new();
    for id in ids {
        pgrx::check_for_interrupts!();
        let outcome = scratch.with(|| writer.claim(id))?;
        count(match outcome {
            Outcome::Claimed { .. } => Counter::Claimed,
            Outcome::Duplicate { .. } => Counter::Duplicate,
            Outcome::InProgress => Counter::InProgress,
            Outcome::Mismatch { .. } => Counter::Mismatch,
            Outcome::Expired => Counter::Expired,
        });
        tell(outcome);
    }
    Ok(())
}

/// Claims messages of one destination. Look-ups and inserts are set up once for a whole batch.
struct ClaimWriter<'a> {
    destination: Destination,
    name: &'a str,
    rings: &'a Rings,
    terms: Terms<'a>,
    sealed: Vec<Lookup<'a>>,
    written: Vec<(Lookup<'a>, Inserter<'a>)>,
    pending: Option<PendingCheck<'a>>,
}

/// The state of a key in a slice, when no other transaction is writing the key.
enum KeyState {
    Free,
    Taken(Outcome),
}

impl<'a> ClaimWriter<'a> {
    fn new(
        slices: &'a Slices,
        destination: Destination,
        name: &'a str,
        rings: &'a Rings,
        terms: Terms<'a>,
    ) -> Self {
        ClaimWriter {
            destination,
            name,
            rings,
            terms,
            sealed: slices
                .sealed
                .iter()
                .map(|table| Lookup::insert_only(table, 2))
                .collect(),
            written: slices
                .written
                .iter()
                .map(|table| (Lookup::insert_only(table, 2), Inserter::new(table)))
                .collect(),
            pending: (!terms.holds_pending).then(|| PendingCheck::new(rings)),
        }
    }

    fn claim(&mut self, id: &MessageId) -> Result<Outcome> {
        let mut keys = identity_keys(&id.key, self.destination.id);
        let looks = self
            .sealed
            .iter_mut()
            .chain(self.written.iter_mut().map(|(lookup, _)| lookup));
        for lookup in looks {
            if let KeyState::Taken(outcome) = settle(lookup, &mut keys, id, self.name, self.terms)?
            {
                return Ok(outcome);
            }
        }
        if self
            .terms
            .sent_at
            .is_some_and(|sent_at| self.destination.may_have_forgotten(self.rings, sent_at))
        {
            return Ok(Outcome::Expired);
        }
        pause_point("claim: before insert");
        let mut claimed_at = pg::clock();
        for n in 0..self.written.len() {
            while !self.insert(n, id, claimed_at) {
                // Another claimer inserted the key between the look-up and the insert.
                let settled = settle(&mut self.written[n].0, &mut keys, id, self.name, self.terms)?;
                if let KeyState::Taken(outcome) = settled {
                    self.retract(n, &mut keys);
                    return Ok(outcome);
                }
                if n == 0 {
                    // The other claim may have been committed with effects and then forgotten.
                    // Effects belong to the claim with the same time, so this claim needs a later
                    // time.
                    claimed_at = pg::clock();
                }
            }
        }
        pause_point("claim: before second look");
        // Check the pending messages after the claim is written, so that a later writer of a
        // pending message finds the claim.
        if let Some(outcome) = self.take_pending(id)? {
            self.retract(self.written.len(), &mut keys);
            return Ok(outcome);
        }
        Ok(Outcome::Claimed { claimed_at })
    }

    /// Inserts the claim into one of the written slices. Returns false if the key is taken.
    fn insert(&mut self, slice: usize, id: &MessageId, claimed_at: pg_sys::TimestampTz) -> bool {
        let row = [
            uuid_datum(&id.key),
            claimed_at.into_datum(),
            self.destination.id.into_datum(),
            id.text.into_datum(),
            self.terms.fingerprint.into_datum(),
        ];
        self.written[slice].1.insert(&row)
    }

    /// Deletes the pending message of this claim. Returns the outcome if a lease protects it.
    fn take_pending(&self, id: &MessageId) -> Result<Option<Outcome>> {
        let Some(pending) = &self.pending else {
            return Ok(None);
        };
        let identity = Identity {
            id: *id,
            destination: self.destination,
            name: self.name,
        };
        match pending.take(&identity, self.terms.wait)? {
            PendingState::Clear => Ok(None),
            PendingState::Leased { remaining } if self.terms.wait => Err(Error::Leased {
                destination: self.name.to_owned(),
                seconds: remaining as f64 / 1e6,
            }),
            PendingState::Leased { .. } | PendingState::InProgress => Ok(Some(Outcome::InProgress)),
        }
    }

    /// Deletes this claim from the first `slices` written slices, because the claim failed after
    /// these inserts. A claim is in all written slices or in none.
    fn retract(&mut self, slices: usize, keys: &mut [pg_sys::ScanKeyData]) {
        for (lookup, _) in &mut self.written[..slices] {
            if lookup.find_mine(keys) {
                lookup.delete();
            }
        }
    }
}

/// Looks the key up again and again until no other transaction is writing it. If `terms.wait` is
/// false, returns `InProgress` instead of waiting.
fn settle(
    lookup: &mut Lookup,
    keys: &mut [pg_sys::ScanKeyData],
    id: &MessageId,
    destination: &str,
    terms: Terms,
) -> Result<KeyState> {
    loop {
        match lookup.find(keys) {
            Found::Nothing => return Ok(KeyState::Free),
            Found::Row => return taken(lookup, id, destination, terms).map(KeyState::Taken),
            Found::InProgress { .. } if !terms.wait => {
                return Ok(KeyState::Taken(Outcome::InProgress));
            }
            Found::InProgress {
                xid,
                speculative_token,
            } => wait_for(xid, speculative_token),
        }
        pgrx::check_for_interrupts!();
    }
}

/// Returns the outcome of a claim after a row with its key was found.
fn taken(row: &Lookup, id: &MessageId, destination: &str, terms: Terms) -> Result<Outcome> {
    check_claim(row, id, destination)?;
    row.rely();
    let handled_at = row.column(2).map_or(0, |d| d.value() as i64);
    // SAFETY: column 5 of a slice is bytea; the copy is made before the next look-up.
    let fingerprint = unsafe { row.column(5).and_then(|d| Vec::<u8>::from_datum(d, false)) };
    Ok(match (terms.fingerprint, fingerprint) {
        (Some(asked), Some(kept)) if asked != kept => Outcome::Mismatch { handled_at },
        _ => Outcome::Duplicate { handled_at },
    })
}

/// Fails with 23000 unless the row found under the key of a message belongs to that message.
pub fn check_claim(row: &Lookup, id: &MessageId, destination: &str) -> Result<()> {
    // SAFETY: column 4 of a slice is text; the copy is made before the next look-up.
    let text = unsafe { row.column(4).and_then(|d| String::from_datum(d, false)) };
    check_same_message(text, id, destination)
}

/// Fails with 23000 unless `text`, the text id of the found row, is the text id of the message. Two
/// ids can have the same key, and the second id must never be treated as a duplicate.
pub fn check_same_message(text: Option<String>, id: &MessageId, destination: &str) -> Result<()> {
    if text.as_deref() == id.text {
        return Ok(());
    }
    Err(Error::KeyTaken {
        destination: destination.to_owned(),
        taken_by: text.map_or_else(|| "a uuid".to_owned(), |text| format!("\"{text}\"")),
    })
}

/// Returns the scan keys of an identity, for the first two columns of a slice's index.
pub fn identity_keys(key: &Key, destination: i32) -> [pg_sys::ScanKeyData; 2] {
    let eq = pg_sys::BTEqualStrategyNumber as u16;
    // SAFETY: ScanKeyInit fills the zeroed keys; the uuid datum lives in the current memory
    // context.
    unsafe {
        let mut keys: [pg_sys::ScanKeyData; 2] = std::mem::zeroed();
        let uuid = uuid_datum(key).unwrap_or(pg_sys::Datum::from(0));
        pg_sys::ScanKeyInit(&mut keys[0], 1, eq, pg_sys::F_UUID_EQ.into(), uuid);
        pg_sys::ScanKeyInit(
            &mut keys[1],
            2,
            eq,
            pg_sys::F_INT4EQ.into(),
            pg_sys::Datum::from(destination),
        );
        keys
    }
}

pub fn uuid_datum(key: &Key) -> Option<pg_sys::Datum> {
    pgrx::Uuid::from_bytes(*key.bytes()).into_datum()
}
