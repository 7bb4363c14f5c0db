//! The search for messages that can be leased now.
//!
//! Due messages are visited in the order (due_at, seq). Of the messages of one ordering key only
//! the head can be leased, or become a dead letter if it has no attempt left. If too many messages
//! at the beginning wait for the heads of their keys, the search goes from key to key instead. It
//! then reads only the head of each key, however many messages wait behind it. A message with an
//! expired lease may have crashed its consumer, so it is leased alone: it is taken if it is the
//! first message that can be leased, and ends the search.

use super::due::{Due, DueIndex, OrderingKeyHead, OrderingKeyIndex, is_exhausted};
use super::row::LeaseState;
use super::scan_start::{self, BEGINNING};
use super::tables::{IndexKind, by_index};
use crate::errors::Result;
use crate::pg::{Latest, Scratch, Walk};
use pgrx::pg_sys;

/// The parameters of a search.
#[derive(Debug, Clone, Copy)]
pub struct Search {
    /// The current table of pending messages, which the caller has locked.
    pub table: pg_sys::Oid,
    pub destination: i32,
    pub now: pg_sys::TimestampTz,
    pub max_attempts: i32,
    pub at_most: usize,
    /// Whether the caller holds the lock on the destination's row. Without this lock messages with
    /// keys are not leased.
    pub holds_destination: bool,
}

/// The result of visiting a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visit {
    /// The visitor took the message.
    Taken,
    /// Another transaction holds the message.
    Held,
    /// The message is larger than the number of bytes that the caller has left. The search ends,
    /// because no later message may overtake it in this function call.
    TooLarge,
    /// The server cannot return the message, so it becomes a dead letter.
    Unreturnable,
}

/// The reason why a search ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Done,
    /// A message with a key is due, and the caller does not hold the lock on the destination's row.
    NeedsDestination,
}

/// The result of a search, beside the messages that the visitor took.
pub struct SearchResult {
    pub ended: Ended,
    /// The keys of the ids (not the ordering keys) of due messages that have no attempt left or a
    /// final error, or that the server cannot return.
    pub exhausted: Vec<pgrx::Uuid>,
    /// Whether another transaction held at least one message.
    pub is_contended: bool,
}

/// Maximum number of exhausted messages that one search returns.
const EXHAUSTED: usize = 1_000;

impl Search {
    /// Returns the number of blocked messages after which the search goes from key to key.
    fn window(&self) -> usize {
        10 * self.at_most + 500
    }

    /// Calls `visit` for each message that can be leased, until enough are taken.
    pub fn run(
        &self,
        visit: &mut dyn FnMut(&Due, &mut Walk) -> Result<Visit>,
    ) -> Result<SearchResult> {
        let snapshot = Latest::take();
        let due_table = by_index(self.table, IndexKind::Due)?;
        let key_table = by_index(self.table, IndexKind::Order)?;
        let mut run = Run {
            due: DueIndex::new(&due_table, &snapshot, self.destination),
            keys: OrderingKeyIndex::new(&key_table, &snapshot, self.destination, self.now),
            blocked: 0,
            taker: Taker {
                search: self,
                scratch: Scratch::new(),
                visit,
                taken: 0,
                is_full: false,
                result: SearchResult {
                    ended: Ended::Done,
                    exhausted: Vec::new(),
                    is_contended: false,
                },
            },
        };
        run.whole()?;
        Ok(run.taker.result)
    }
}

/// Offers messages to the visitor, and notes what ends the search.
struct Taker<'s> {
    search: &'s Search,
    /// The memory for the errors of one message.
    scratch: Scratch,
    visit: &'s mut dyn FnMut(&Due, &mut Walk) -> Result<Visit>,
    taken: usize,
    /// Whether a message was larger than the number of bytes that the caller has left, or a message
    /// with an expired lease was taken.
    is_full: bool,
    result: SearchResult,
}

impl Taker<'_> {
    /// Offers a message that can be leased: the head of its ordering key, or one without a key.
    /// Returns whether another transaction holds it.
    fn offer(&mut self, message: &Due, row: &mut Walk) -> Result<bool> {
        let (key, max_attempts) = (uuid(row), self.search.max_attempts);
        let is_exhausted = || is_exhausted(row, &message.state, max_attempts);
        if self.scratch.with(is_exhausted) {
            self.note_exhausted(key);
        } else if self.taken == 0 || !is_suspect(message) {
            match (self.visit)(message, row)? {
                Visit::Taken => {
                    self.taken += 1;
                    self.is_full = is_suspect(message);
                }
                Visit::TooLarge => self.is_full = true,
                Visit::Unreturnable => self.note_exhausted(key),
                Visit::Held => {
                    self.result.is_contended = true;
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn has_enough(&self) -> bool {
        self.is_full || self.taken >= self.search.at_most
    }

    fn note_exhausted(&mut self, key: Option<pgrx::Uuid>) {
        if self.result.exhausted.len() < EXHAUSTED {
            self.result.exhausted.extend(key);
        }
    }
}

struct Run<'s, 't> {
    due: DueIndex<'t>,
    keys: OrderingKeyIndex<'t>,
    /// The number of visited messages that wait for another message of their key.
    blocked: usize,
    taker: Taker<'s>,
}

impl Run<'_, '_> {
    fn whole(&mut self) -> Result<()> {
        let start = scan_start::begin(self.taker.search.destination);
        let Some(first) = self.first_due(start.at) else {
            return Ok(());
        };
        start.found(first.state.due_at);
        let from = first.state.due_at;
        self.in_order(first)?;
        if self.taker.taken == 0
            && self.taker.result.ended == Ended::Done
            && self.blocked > self.taker.search.window()
        {
            self.by_ordering_keys()?;
            self.without_keys(from)?;
        }
        Ok(())
    }

    fn first_due(&mut self, from: pg_sys::TimestampTz) -> Option<Due> {
        self.due.seek(from, self.taker.search.now);
        let first = self.due.next();
        if first.is_some() || from == BEGINNING {
            return first;
        }
        self.due.seek(BEGINNING, self.taker.search.now);
        self.due.next()
    }

    /// Visits messages in the order in which they are due.
    fn in_order(&mut self, first: Due) -> Result<()> {
        let mut next = Some(first);
        while let Some(message) = next {
            if message.order_key.is_some() && !self.taker.search.holds_destination {
                if self.taker.taken == 0 {
                    self.taker.result.ended = Ended::NeedsDestination;
                }
                return Ok(());
            }
            self.consider(&message)?;
            if self.taker.has_enough() || self.blocked > self.taker.search.window() {
                return Ok(());
            }
            next = self.due.next();
        }
        Ok(())
    }

    fn consider(&mut self, message: &Due) -> Result<()> {
        if let Some(key) = &message.order_key {
            let head = self.keys.head(key);
            if !matches!(head, OrderingKeyHead::Message { seq } if seq == message.state.seq) {
                self.blocked += 1;
                return Ok(());
            }
        }
        let is_held = self.taker.offer(message, self.due.row())?;
        if is_held && let Some(key) = &message.order_key {
            self.keys.block(key);
        }
        Ok(())
    }

    fn by_ordering_keys(&mut self) -> Result<()> {
        let mut key = self.keys.key_after(None);
        while let Some(this) = key {
            pgrx::check_for_interrupts!();
            if let OrderingKeyHead::Message { seq } = self.keys.head(&this)
                && let Some((message, row)) = self.keys.message(&this, seq)
            {
                self.taker.offer(&message, row)?;
                if self.taker.has_enough() {
                    return Ok(());
                }
            }
            key = self.keys.key_after(Some(&this));
        }
        Ok(())
    }

    /// Visits the messages without an ordering key. The search in the order of due times does not
    /// reach them if too many blocked messages with keys are before them.
    fn without_keys(&mut self, from: pg_sys::TimestampTz) -> Result<()> {
        if self.taker.taken > 0 || !self.keys.any_without_key() {
            return Ok(());
        }
        self.due.seek(from, self.taker.search.now);
        while let Some(message) = self.due.next() {
            if message.order_key.is_none() {
                self.consider(&message)?;
                if self.taker.has_enough() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

fn is_suspect(message: &Due) -> bool {
    message.state.lease == LeaseState::Leased
}

fn uuid(row: &Walk) -> Option<pgrx::Uuid> {
    // SAFETY: the column is a uuid; the copy is made before the scan moves.
    unsafe {
        row.column(super::row::column::KEY)
            .and_then(|datum| pgrx::FromDatum::from_datum(datum, false))
    }
}
