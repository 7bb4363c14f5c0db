//! Claims many messages of one destination in one function call.
//!
//! The messages are claimed in the order of their keys, so two transactions that each claim one
//! batch of a destination cannot deadlock. The second of two equal ids is a duplicate. A lease
//! fails the whole batch with 55P03.

use super::{ClaimWriter, Outcome, Terms};
use crate::destination;
use crate::errors::Result;
use crate::identity::Identity;
use crate::pg::Scratch;
use crate::ring;
use crate::slices::Slices;
use crate::stats::{Counter, count_many};
use idem_core::MessageId;
use idem_core::memory::reserve;

/// The number of claims whose lines of the filters are fetched together. Their lines fit into the
/// smallest cache of a processor.
const PART: usize = 32;

/// The largest number of messages that are claimed together. If another transaction prevents it, at
/// most this number of rows is inserted for nothing, and the rest of the batch is claimed one by
/// one.
const GROUP: usize = 1024;

/// Claims the messages in the order of their keys, so that two concurrent batches cannot deadlock.
/// The second of two equal ids is a duplicate of the first. Returns whether each message was
/// claimed, in the order of the ids.
pub fn claim_batch(ids: &[MessageId], name: &str) -> Result<Vec<bool>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let mut order = reserve(ids.len())?;
    order.extend(0..ids.len());
    // The position is part of the sort key, so that the first of two equal ids gets the claim.
    order.sort_unstable_by_key(|&n| (ids[n].key, n));
    let mut claimed = reserve(ids.len())?;
    claimed.resize(ids.len(), false);
    let rings = ring::enter()?;
    let destination = destination::intern(name, &rings)?;
    let slices = Slices::open(&destination, &rings);
    let mut batch = Batch {
        writer: ClaimWriter::new(&slices, &rings, Terms::PLAIN),
        scratch: Scratch::new(),
        identity: |n: usize| Identity {
            id: ids[n],
            destination,
            name,
        },
        claimed,
        is_together: true,
    };
    for group in order.chunks(GROUP) {
        batch.claim_group(group)?;
    }
    Ok(batch.claimed)
}

impl<'a> ClaimWriter<'_, 'a> {
    /// Runs `work` for each message, in this order. Before that it fetches the message's lines of
    /// the filters. The loop ends with an error when the statement is cancelled.
    pub(super) fn for_each(
        &mut self,
        order: &[usize],
        identity: &impl Fn(usize) -> Identity<'a>,
        mut work: impl FnMut(&mut Self, usize, Identity<'a>) -> Result<()>,
    ) -> Result<()> {
        for part in order.chunks(PART) {
            part.iter().for_each(|&n| self.fetch_lines(&identity(n)));
            for &n in part {
                pgrx::check_for_interrupts!();
                work(self, n, identity(n))?;
            }
        }
        Ok(())
    }
}

/// A batch whose messages are given by their positions in it.
struct Batch<'s, 'a, F> {
    writer: ClaimWriter<'s, 'a>,
    scratch: Scratch,
    identity: F,
    /// Whether each message was claimed, by position.
    claimed: Vec<bool>,
    /// Whether messages are claimed together: until the claims of a group could not be inserted.
    is_together: bool,
}

impl<'a, F: Fn(usize) -> Identity<'a>> Batch<'_, 'a, F> {
    /// Claims messages together if that is possible, and otherwise one by one.
    fn claim_group(&mut self, order: &[usize]) -> Result<()> {
        if !self.is_together || !ClaimWriter::may_claim_together(order.len()) {
            return self.claim_each(order);
        }
        let new = self
            .writer
            .new_messages(order, &self.identity, &self.scratch)?;
        count_many(Counter::Duplicate, order.len() - new.len());
        if !ClaimWriter::may_claim_together(new.len()) {
            return self.claim_again(&new);
        }
        self.is_together = self
            .writer
            .insert_together(&new, &self.identity, &self.scratch);
        if !self.is_together {
            return self.claim_again(&new);
        }
        count_many(Counter::Claimed, new.len());
        new.into_iter().for_each(|n| self.claimed[n] = true);
        Ok(())
    }

    /// Claims messages one by one whose look-ups were counted before.
    fn claim_again(&mut self, order: &[usize]) -> Result<()> {
        self.writer.counts_look_ups = false;
        self.claim_each(order)?;
        self.writer.counts_look_ups = true;
        Ok(())
    }

    fn claim_each(&mut self, order: &[usize]) -> Result<()> {
        let Batch {
            writer,
            scratch,
            identity,
            claimed,
            ..
        } = self;
        writer.for_each(order, identity, |writer, n, message| {
            let outcome = scratch.with(|| writer.claim(message))?;
            claimed[n] = matches!(outcome, Outcome::Claimed(_));
            Ok(())
        })
    }
}
