//! Reads and writes the events of one external call.

use crate::identity::Identity;
use crate::pg::{Found, FoundIn, Inserter, Lookup, equals, look_again, scan_in};
use crate::slices::Slices;
use idem_core::{Attempts, CallEvent};
use pgrx::pg_sys;
use pgrx::pg_sys::Datum;
use pgrx::prelude::*;
use std::collections::BTreeMap;

/// The columns of a slice, numbered from 1 (sql/schema/journal.sql).
mod column {
    pub const AT: usize = 2;
    pub const EVENT: usize = 4;
    pub const KIND: usize = 5;
    pub const STEP: usize = 6;
    pub const DIGEST: usize = 7;
    pub const BODY: usize = 8;
}

/// An event of an external call, as read from the journal.
pub struct CallEntry {
    pub number: i32,
    pub event: CallEvent,
    pub at: pg_sys::TimestampTz,
    digest: Option<Vec<u8>>,
    /// The response or the error, in PostgreSQL's memory until the function returns.
    pub body: Option<&'static str>,
}

impl CallEntry {
    /// Reads the event and its step from the found row. Returns `None` if the row is not an event
    /// of a call.
    pub fn of(found: &Lookup) -> Option<(String, Self)> {
        let row = found.row();
        let column = |number: usize| row.get(number - 1).copied().flatten();
        // SAFETY: the columns have these types; the row is a copy.
        unsafe {
            let entry = CallEntry {
                number: column(column::EVENT)?.value() as i32,
                event: CallEvent::from_number(column(column::KIND)?.value() as i16)?,
                at: column(column::AT)?.value() as i64,
                digest: column(column::DIGEST).and_then(|d| Vec::<u8>::from_datum(d, false)),
                body: column(column::BODY).and_then(|d| <&str>::from_datum(d, false)),
            };
            Some((String::from_datum(column(column::STEP)?, false)?, entry))
        }
    }
}

/// The events of a call, in order.
#[derive(Default)]
pub struct CallHistory {
    entries: BTreeMap<i32, CallEntry>,
    pub attempts: Attempts,
}

impl CallHistory {
    /// Adds an event, unless it was added before: while the ring is opening, an event is in two
    /// slices.
    pub fn add(&mut self, entry: CallEntry) {
        self.entries.entry(entry.number).or_insert(entry);
    }

    /// Adds the events of a slice that has left the ring. They are earlier than the other events,
    /// so their numbers are lower. If a number is not, the call was forgotten and begun again, and
    /// the event with this number belongs to the forgotten call.
    pub fn add_earlier(&mut self, earlier: CallHistory) {
        let first = self.entries.keys().next().copied().unwrap_or(i32::MAX);
        let earlier = earlier.entries.into_iter();
        self.entries
            .extend(earlier.filter(|(number, _)| *number < first));
    }

    /// Computes the attempts, after all events were added.
    pub fn with_attempts(mut self) -> Self {
        for entry in self.entries.values() {
            self.attempts.record(entry.event, entry.at);
        }
        self
    }

    pub fn last(&self) -> Option<&CallEntry> {
        self.entries.values().next_back()
    }

    /// Returns what the last event stores, if `is_wanted`. A caller wants the response of a
    /// finished call or the error of a failed attempt: any other event stores nothing.
    pub fn body_if(&self, is_wanted: bool) -> Option<&'static str> {
        self.last().filter(|_| is_wanted)?.body
    }

    /// Returns the digest of the request of the first attempt; `Some(None)` if that attempt had no
    /// request. Returns `None` if there are no events.
    pub fn first_digest(&self) -> Option<Option<&[u8]>> {
        self.entries
            .values()
            .next()
            .map(|entry| entry.digest.as_deref())
    }

    /// Returns the time of the first event that is still stored.
    pub fn began_at(&self) -> Option<pg_sys::TimestampTz> {
        self.entries.values().next().map(|entry| entry.at)
    }

    fn next_number(&self) -> i32 {
        self.last().map_or(0, |entry| entry.number + 1)
    }

    fn has_a_gap(&self) -> bool {
        let first = self.entries.keys().next().copied().unwrap_or(0);
        self.next_number() - first > self.entries.len() as i32
    }
}

/// The journal, positioned at one call.
pub struct CallJournal<'a> {
    identity: Identity<'a>,
    step: &'a str,
    keys: [pg_sys::ScanKeyData; 3],
    probed_only: Vec<Lookup<'a>>,
    written: Vec<(Lookup<'a>, Inserter<'a>)>,
}

impl<'a> CallJournal<'a> {
    /// `slices` are slices of the journal.
    pub fn new(slices: &'a Slices, identity: Identity<'a>, step: &'a str) -> Self {
        CallJournal {
            identity,
            step,
            keys: call_keys(&identity, step),
            probed_only: slices
                .probed_only
                .iter()
                .map(|slice| Lookup::insert_only(slice.table(), 3))
                .collect(),
            written: slices
                .written
                .iter()
                .map(|slice| {
                    let table = &slice.table;
                    (Lookup::insert_only(table, 3), Inserter::new(table))
                })
                .collect(),
        }
    }

    /// Returns the events of the call. Waits until no other transaction is writing one of them.
    pub fn read(&mut self) -> CallHistory {
        let mut looked_twice = false;
        look_again(|| {
            let history = self.look()?;
            // A scan with a dirty snapshot can miss an event and return a later one. A second scan
            // returns both events, unless the slice of the missing event was truncated.
            if looked_twice || !history.has_a_gap() {
                return Some(history.with_attempts());
            }
            looked_twice = true;
            None
        })
    }

    /// Reads the events once. Returns `None` after a wait for a transaction that was writing an
    /// event: the caller must read again. An event that this transaction has written is read, and
    /// another transaction that is writing an event with its number does not matter.
    fn look(&mut self) -> Option<CallHistory> {
        let mut history = CallHistory::default();
        let written = self.written.iter_mut().map(|(lookup, _)| lookup);
        let slices = self.probed_only.iter_mut().chain(written);
        let found = scan_in(slices, &mut self.keys, event_number, |event| {
            if let Some((_, entry)) = CallEntry::of(event) {
                history.add(entry);
            }
            false
        });
        if let FoundIn::InProgress(writer) = found {
            writer.wait();
            return None;
        }
        Some(history)
    }

    /// Writes the next event. Returns false if another transaction wrote an event first; the caller
    /// must then read again. `digest` is the digest of the request. The event that ends an attempt
    /// stores it too, because the first event may be removed earlier.
    pub fn add(
        &mut self,
        history: &CallHistory,
        event: CallEvent,
        at: pg_sys::TimestampTz,
        digest: Option<&[u8]>,
        body: Option<&str>,
    ) -> bool {
        let number = history.next_number();
        let row = [
            self.identity.key_datum(),
            at.into_datum(),
            self.identity.destination.id.into_datum(),
            number.into_datum(),
            (event as i16).into_datum(),
            self.step.into_datum(),
            digest.into_datum(),
            body.into_datum(),
        ];
        for n in 0..self.written.len() {
            if !self.written[n].1.insert(&row) {
                self.retract(n, number);
                return false;
            }
        }
        true
    }

    /// Deletes the event from the first `slices` written slices, because the next slice already has
    /// an event with this number.
    fn retract(&mut self, slices: usize, number: i32) {
        for (lookup, _) in &mut self.written[..slices] {
            lookup.seek(&mut self.keys);
            while lookup.next() != Found::Nothing {
                if event_number(lookup) == Some(number) && lookup.is_mine() {
                    lookup.delete();
                    break;
                }
            }
        }
    }
}

/// Returns the number of an event, which is the last column of a slice's index.
fn event_number(found: &Lookup) -> Option<i32> {
    found
        .column(column::EVENT as i32)
        .map(|number| number.value() as i32)
}

/// Returns the scan keys of a call: the first three columns of a slice's index.
fn call_keys(identity: &Identity, step: &str) -> [pg_sys::ScanKeyData; 3] {
    let [key, destination] = identity.keys();
    let step = step.into_datum().unwrap_or(Datum::from(0));
    [key, destination, equals(3, pg_sys::F_TEXTEQ, step)]
}
