//! Claims many messages of one destination in one function call.

use super::{ClaimWriter, Outcome, Terms};
use crate::destination;
use crate::errors::Result;
use crate::identity::Identity;
use crate::pg::Scratch;
use crate::ring;
use crate::slices::Slices;
use idem_core::MessageId;
use idem_core::memory::reserve;

/// The number of claims whose lines of the filters are fetched together. Their lines fit into the
/// smallest cache of a processor.
const PART: usize = 32;

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
    let mut writer = ClaimWriter::new(&slices, &rings, Terms::PLAIN);
    let scratch = Scratch::new();
    let identity = |n: usize| Identity {
        id: ids[n],
        destination,
        name,
    };
    for part in order.chunks(PART) {
        part.iter().for_each(|&n| writer.fetch_lines(&identity(n)));
        for &n in part {
            pgrx::check_for_interrupts!();
            let outcome = scratch.with(|| writer.claim(identity(n)))?;
            claimed[n] = matches!(outcome, Outcome::Claimed(_));
        }
    }
    Ok(claimed)
}
