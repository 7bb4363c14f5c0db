//! Publishes the recorded effects of a message again.

use super::read::recorded;
use crate::errors::Result;
use crate::outbox;
use crate::ring;
use crate::stats::{Counter, count_many};
use idem_core::MessageId;

/// Copies the recorded rows into the current slice and returns their number. Only the sequence
/// number, the transaction id and the mark as a replay differ.
pub fn replay(id: MessageId, destination: &str) -> Result<usize> {
    let rings = ring::enter()?;
    let rows = recorded(id, destination)?;
    outbox::append_again(&rings.outbox, &rows)?;
    count_many(Counter::EffectReplayed, rows.len());
    Ok(rows.len())
}
