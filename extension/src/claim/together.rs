//! Claims messages together: looks all of them up, and then inserts the claims of the new ones in
//! one subtransaction, without waiting. Then it checks again that no message is pending. If a claim
//! cannot be inserted, or if a message may be pending now, the subtransaction is rolled back, and
//! the caller claims these messages, and the rest of its batch, one by one. After the rollback no
//! other session sees the rows or waits for them. One subtransaction costs less than one
//! speculative insertion for each row: it writes 0.6 times the WAL.

use super::{ClaimWriter, own};
use crate::claim_row::claim_row;
use crate::errors::Result;
use crate::identity::Identity;
use crate::pause::{is_left_out, pause_point};
use crate::pending::presence;
use crate::pg::{self, ManyInserter, Scratch, cached_subtransactions, in_subtransaction};
use idem_core::memory::reserve;

/// The smallest number of claims that are inserted together. A subtransaction costs about as much
/// as a claim.
const SMALLEST: usize = 8;

/// The largest number of subtransactions that a transaction may have before its messages are
/// claimed one by one. PostgreSQL caches 64 of them for each session. If a session has more, every
/// session must read `pg_subtrans` for the transactions that are younger than the oldest open one.
/// The other half is left to the savepoints of the user.
const SUBTRANSACTIONS: u8 = 32;

impl<'a> ClaimWriter<'_, 'a> {
    /// Returns whether this many messages may be claimed together. They may not while there may be
    /// pending messages, because each claim must then look for its own.
    pub(super) fn may_claim_together(messages: usize) -> bool {
        messages >= SMALLEST && !presence::is_noted() && cached_subtransactions() < SUBTRANSACTIONS
    }

    /// Returns the positions of the messages without an earlier claim. `order` contains positions
    /// in the order of their keys. Of two equal ids the second is a duplicate of the first.
    pub(super) fn new_messages(
        &mut self,
        order: &[usize],
        identity: &impl Fn(usize) -> Identity<'a>,
        scratch: &Scratch,
    ) -> Result<Vec<usize>> {
        let mut new: Vec<usize> = reserve(order.len())?;
        self.for_each(order, identity, |writer, n, message| {
            let last = new.last().map(|&last| identity(last).id);
            let is_repeated = last == Some(message.id);
            if !is_repeated
                && scratch
                    .with(|| writer.probe(&mut message.keys(), &message))?
                    .is_none()
            {
                new.push(n);
            }
            Ok(())
        })?;
        Ok(new)
    }

    /// Inserts the claims of new messages. Returns false if none is inserted, because one of the
    /// keys is taken by another message, another transaction has inserted one of them since the
    /// look-up, or a message may be pending now.
    pub(super) fn insert_together(
        &mut self,
        new: &[usize],
        identity: &impl Fn(usize) -> Identity<'a>,
        scratch: &Scratch,
    ) -> bool {
        let inserters = self
            .written
            .iter()
            .map(|at| ManyInserter::new(&at.slice.table, new.len()));
        let Some(mut inserters) = inserters.collect::<Option<Vec<_>>>() else {
            return false;
        };
        // As for one claim, the hints come before the rows, and the clock is read after the
        // look-ups.
        for hint in self.written.iter().filter_map(|at| at.slice.hint) {
            for hash in new.iter().filter_map(|&n| self.hashes.of(&identity(n))) {
                hint.add(hash);
            }
        }
        pause_point("batch: before insert");
        let claimed_at = pg::clock();
        let is_inserted = in_subtransaction(|| {
            let mut segments = inserters.iter_mut().zip(&self.written);
            let inserted = segments.all(|(inserter, written)| {
                inserter.insert(new, scratch, |&n| {
                    claim_row(&identity(n), claimed_at, written.slice.segment, None)
                })
            });
            pause_point("batch: before second look");
            // A later writer of a pending message finds the claims.
            (inserted || is_left_out("batch: conflict"))
                && (!presence::may_exist() || is_left_out("batch: second look"))
        });
        if is_inserted {
            new.iter().for_each(|&n| own::add(&identity(n), claimed_at));
        }
        is_inserted
    }
}
