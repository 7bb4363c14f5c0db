//! The claim: the right to process a message, won by one transaction.
//!
//! Sealed slices are only probed. The current slice, and the next one while the ring is opening,
//! are probed and then written, in that order; claimed is what every insert took, unless a lease
//! protects the message: see `pending`.

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
use crate::pending::{Identity, PendingCheck, Standing};
use crate::pg::{self, Found, Inserter, Lookup, Scratch, wait_for};
use crate::ring::{self, Rings};
use crate::stats::{Counter, count};
use idem_core::{Key, MessageId};
use pgrx::pg_sys;
use pgrx::prelude::*;

/// What became of a claim, with when the first one was made, where there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Claimed { claimed_at: pg_sys::TimestampTz },
    Duplicate { handled_at: pg_sys::TimestampTz },
    InProgress,
    Mismatch { handled_at: pg_sys::TimestampTz },
    Expired,
}

/// How a claim is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'a> {
    /// Wait for a concurrent claimer, or answer `InProgress`.
    pub wait: bool,
    /// Kept with the claim; a duplicate with another one is a `Mismatch`.
    pub fingerprint: Option<&'a [u8]>,
    /// When the sender sent it: what the ring cannot remember any longer is `Expired`.
    pub sent_at: Option<pg_sys::TimestampTz>,
    /// This transaction holds the pending message itself, and will delete it.
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
    claim_each([&id].into_iter(), destination, terms, |told| outcome = told)?;
    Ok(outcome)
}

/// Claims a message whose pending row this transaction holds. Does not wait: another claimer may
/// wait for that row.
pub fn claim_leased(id: MessageId, destination: &str) -> Result<Outcome> {
    let terms = Terms {
        wait: false,
        holds_pending: true,
        ..Terms::PLAIN
    };
    claim(id, destination, terms)
}

/// Claims messages of one destination in the order given, which must be that of their keys: two
/// batches that meet then wait for each other in one direction only. The second of two equal ids is
/// a duplicate of the first. `tell` is called with the outcome of each.
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
    let desk = Slices::open(&known, &rings);
    let mut desk = Desk::new(&desk, known, destination, &rings, terms);
    let scratch = Scratch::new();
    for id in ids {
        pgrx::check_for_interrupts!();
        let outcome = scratch.with(|| desk.claim(id))?;
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

/// Where the claims of one destination are made: look-ups and inserts set up once for a whole
/// batch.
struct Desk<'a> {
    destination: Destination,
    name: &'a str,
    rings: &'a Rings,
    terms: Terms<'a>,
    sealed: Vec<Lookup<'a>>,
    written: Vec<(Lookup<'a>, Inserter<'a>)>,
    pending: Option<PendingCheck<'a>>,
}

/// What a slice says about a key, when nobody is at it any longer.
enum Settled {
    Free,
    Taken(Outcome),
}

impl<'a> Desk<'a> {
    fn new(
        slices: &'a Slices,
        destination: Destination,
        name: &'a str,
        rings: &'a Rings,
        terms: Terms<'a>,
    ) -> Self {
        Desk {
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
            if let Settled::Taken(outcome) = settle(lookup, &mut keys, id, self.name, self.terms)? {
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
                // Another claimer came between the look and the insert.
                let settled = settle(&mut self.written[n].0, &mut keys, id, self.name, self.terms)?;
                if let Settled::Taken(outcome) = settled {
                    self.retract(n, &mut keys);
                    return Ok(outcome);
                }
                if n == 0 {
                    // That one may have been claimed, forgotten and given effects in the meantime:
                    // this execution is later.
                    claimed_at = pg::clock();
                }
            }
        }
        pause_point("claim: before second look");
        // After the claim is written: a writer of pending messages that comes later sees the claim.
        if let Some(outcome) = self.take_pending(id)? {
            self.retract(self.written.len(), &mut keys);
            return Ok(outcome);
        }
        Ok(Outcome::Claimed { claimed_at })
    }

    /// Inserts the claim into one of the written slices; `false` when the key is taken.
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

    /// Deletes the pending message of this claim; returns the outcome when a lease protects it.
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
            Standing::Clear => Ok(None),
            Standing::Leased { remaining } if self.terms.wait => Err(Error::Leased {
                destination: self.name.to_owned(),
                seconds: remaining as f64 / 1e6,
            }),
            Standing::Leased { .. } | Standing::InProgress => Ok(Some(Outcome::InProgress)),
        }
    }

    /// Takes back what went into the first slices, because a later one was taken: a claim stands in
    /// all or in none.
    fn retract(&mut self, slices: usize, keys: &mut [pg_sys::ScanKeyData]) {
        for (lookup, _) in &mut self.written[..slices] {
            if lookup.find_mine(keys) {
                lookup.delete();
            }
        }
    }
}

/// Looks until the key is free, or taken for good; or until it is in progress, when the terms are
/// not to wait.
fn settle(
    lookup: &mut Lookup,
    keys: &mut [pg_sys::ScanKeyData],
    id: &MessageId,
    destination: &str,
    terms: Terms,
) -> Result<Settled> {
    loop {
        match lookup.find(keys) {
            Found::Nothing => return Ok(Settled::Free),
            Found::Row => return taken(lookup, id, destination, terms).map(Settled::Taken),
            Found::InProgress { .. } if !terms.wait => {
                return Ok(Settled::Taken(Outcome::InProgress));
            }
            Found::InProgress {
                xid,
                speculative_token,
            } => wait_for(xid, speculative_token),
        }
        pgrx::check_for_interrupts!();
    }
}

/// A row stands under the key: what it says to whoever claims the same message.
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

/// The row of a slice that was found under the key of a message is that message's.
pub fn check_claim(row: &Lookup, id: &MessageId, destination: &str) -> Result<()> {
    // SAFETY: column 4 of a slice is text; the copy is made before the next look-up.
    let text = unsafe { row.column(4).and_then(|d| String::from_datum(d, false)) };
    check_same_message(text, id, destination)
}

/// The text id of a row that was found under the key of a message is that message's, or 23000:
/// another id with the same key must never be answered for.
pub fn check_same_message(text: Option<String>, id: &MessageId, destination: &str) -> Result<()> {
    if text.as_deref() == id.text {
        return Ok(());
    }
    Err(Error::KeyTaken {
        destination: destination.to_owned(),
        taken_by: text.map_or_else(|| "a uuid".to_owned(), |text| format!("\"{text}\"")),
    })
}

/// The scan keys of an identity: the first and second column of a slice's index.
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
