//! The due messages of a destination, in the order in which `idem_next` returns them.
//!
//! Of the messages of an ordering key only the head can be handed out. A valid lease blocks the
//! whole key. Otherwise the head is the message with the lowest `seq` among the expired leases, the
//! messages that wait for a retry, and the ready messages that are due. If the head waits for its
//! retry, the key waits. A ready message with `deliver_after` in the future and a dead letter do
//! not block their key. A receiver takes `seq` before its commit, so a message whose receiver
//! commits late can be overtaken.

use super::row::{LeaseState, State, column, errors};
use crate::pg::{Latest, Table, Walk, condition, equals, null_condition};
use idem_core::is_final;
use pgrx::prelude::*;
use pgrx::{FromDatum, pg_sys};
use std::collections::HashMap;

/// A due message, with its ordering key.
pub struct Due {
    pub state: State,
    pub order_key: Option<String>,
}

/// Returns whether a message has no attempt left or a final error. A final error makes a received
/// message dead at once. So a message in this scan has one only if a consumer of its broker
/// released it with this error before it was received. `row` is the row of the message, whose
/// errors are parsed.
pub fn is_exhausted(row: &Walk, state: &State, max_attempts: i32) -> bool {
    state.attempt >= max_attempts
        || state.attempt > 0 && is_final(&errors(row.column(column::ERRORS)))
}

/// Scans the index on (destination, due_at, seq).
pub struct DueIndex<'t> {
    walk: Walk<'t>,
    destination: i32,
}

impl<'t> DueIndex<'t> {
    pub fn new(table: &'t Table, snapshot: &'t Latest, destination: i32) -> Self {
        DueIndex {
            walk: Walk::new(table, snapshot, 3),
            destination,
        }
    }

    /// Starts a scan of the messages that are due from `from` to `to`.
    pub fn seek(&mut self, from: pg_sys::TimestampTz, to: pg_sys::TimestampTz) {
        let mut conditions = [
            equals(1, pg_sys::F_INT4EQ, self.destination.into()),
            condition(
                2,
                pg_sys::BTGreaterEqualStrategyNumber,
                pg_sys::F_TIMESTAMPTZ_GE,
                from.into(),
            ),
            condition(
                2,
                pg_sys::BTLessEqualStrategyNumber,
                pg_sys::F_TIMESTAMPTZ_LE,
                to.into(),
            ),
        ];
        self.walk.seek(&mut conditions);
    }

    /// Returns the next received message. Messages of brokers are skipped, because `idem_next` does
    /// not return them.
    pub fn next(&mut self) -> Option<Due> {
        while self.walk.next() {
            pgrx::check_for_interrupts!();
            let state = State::read_walked(&self.walk);
            if state.payload_slice.is_some() {
                return Some(Due {
                    order_key: text(self.walk.column(column::ORDER_KEY)),
                    state,
                });
            }
        }
        None
    }

    /// Returns the row of the message that `next` returned last.
    pub fn row(&mut self) -> &mut Walk<'t> {
        &mut self.walk
    }
}

/// The head of an ordering key: the message of the key that can be leased next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderingKeyHead {
    /// The message with this `seq`. All other messages of the key wait for it.
    Message { seq: i64 },
    /// No message of the key can be leased: one is leased or waits for its retry, or no message is
    /// due.
    Blocked,
}

/// Scans the index on (destination, order_key, state, seq), and caches the heads of keys.
pub struct OrderingKeyIndex<'t> {
    walk: Walk<'t>,
    keys: Walk<'t>,
    destination: i32,
    now: pg_sys::TimestampTz,
    heads: HashMap<String, OrderingKeyHead>,
}

impl<'t> OrderingKeyIndex<'t> {
    pub fn new(
        table: &'t Table,
        snapshot: &'t Latest,
        destination: i32,
        now: pg_sys::TimestampTz,
    ) -> Self {
        OrderingKeyIndex {
            walk: Walk::new(table, snapshot, 3),
            keys: Walk::new(table, snapshot, 2),
            destination,
            now,
            heads: HashMap::new(),
        }
    }

    /// Returns the head of a key. Later calls for the key return the same head.
    pub fn head(&mut self, key: &str) -> OrderingKeyHead {
        if let Some(head) = self.heads.get(key) {
            return *head;
        }
        let head = self.find_head(key);
        self.heads.insert(key.to_owned(), head);
        head
    }

    /// Marks the ordering key as blocked for this search, because another transaction has locked
    /// the first message of the key.
    pub fn block(&mut self, key: &str) {
        self.heads.insert(key.to_owned(), OrderingKeyHead::Blocked);
    }

    /// Returns the first ordering key after `key`, or the first one of the destination if `key` is
    /// `None`.
    pub fn key_after(&mut self, key: Option<&str>) -> Option<String> {
        let destination = self.of_destination();
        let after = match key.and_then(IntoDatum::into_datum) {
            Some(key) => condition(2, pg_sys::BTGreaterStrategyNumber, pg_sys::F_TEXT_GT, key),
            None => null_condition(2, false),
        };
        self.keys.seek(&mut [destination, after]);
        self.keys
            .next()
            .then(|| text(self.keys.column(column::ORDER_KEY)))
            .flatten()
    }

    /// Returns the message with this ordering key and this `seq`, and its row.
    pub fn message(&mut self, key: &str, seq: i64) -> Option<(Due, &mut Walk<'t>)> {
        for lease in [LeaseState::Leased, LeaseState::Ready, LeaseState::Waiting] {
            self.seek(key, lease);
            while self.walk.next() {
                let state = State::read_walked(&self.walk);
                if state.seq == seq {
                    let due = Due {
                        order_key: Some(key.to_owned()),
                        state,
                    };
                    return Some((due, &mut self.walk));
                }
            }
        }
        None
    }

    /// Returns whether the destination has a message without a key.
    pub fn any_without_key(&mut self) -> bool {
        let destination = self.of_destination();
        self.keys.seek(&mut [destination, null_condition(2, true)]);
        self.keys.next()
    }

    /// Finds the head of a key. A lease that has not expired blocks the key. Otherwise the head is
    /// the first of these by `seq`: an expired lease, a ready message that is due, or a message
    /// that waits for its retry. A message that waits for its retry blocks the key until it is due.
    fn find_head(&mut self, key: &str) -> OrderingKeyHead {
        let mut first: Option<State> = None;
        let mut offer = |state: State| {
            if first.as_ref().is_none_or(|first| state.seq < first.seq) {
                first = Some(state);
            }
        };
        self.seek(key, LeaseState::Leased);
        while self.walk.next() {
            let state = State::read_walked(&self.walk);
            if state.due_at > self.now {
                return OrderingKeyHead::Blocked;
            }
            offer(state);
        }
        for lease in [LeaseState::Ready, LeaseState::Waiting] {
            self.seek(key, lease);
            while self.walk.next() {
                pgrx::check_for_interrupts!();
                let state = State::read_walked(&self.walk);
                // A ready message with a deliver_after in the future does not delay the other
                // messages.
                if lease == LeaseState::Waiting || state.due_at <= self.now {
                    offer(state);
                    break;
                }
            }
        }
        match first {
            Some(head) if head.due_at <= self.now && head.payload_slice.is_some() => {
                OrderingKeyHead::Message { seq: head.seq }
            }
            _ => OrderingKeyHead::Blocked,
        }
    }

    fn seek(&mut self, key: &str, lease: LeaseState) {
        let Some(key) = key.into_datum() else {
            return;
        };
        let mut conditions = [
            self.of_destination(),
            equals(2, pg_sys::F_TEXTEQ, key),
            equals(3, pg_sys::F_CHAREQ, lease.datum()),
        ];
        self.walk.seek(&mut conditions);
    }

    fn of_destination(&self) -> pg_sys::ScanKeyData {
        equals(1, pg_sys::F_INT4EQ, self.destination.into())
    }
}

fn text(datum: Option<pg_sys::Datum>) -> Option<String> {
    // SAFETY: the column is text; the copy is made before the scan moves.
    unsafe { datum.and_then(|d| String::from_datum(d, false)) }
}
