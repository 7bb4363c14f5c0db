//! Publishes the recorded effects of a message again.

use super::read::recorded;
use crate::errors::Result;
use crate::outbox::Appending;
use crate::ring;
use crate::stats::{Counter, count_many};
use idem_core::MessageId;

/// Copies the recorded rows into the current slice and returns their number. Only the sequence
/// number, the transaction id and the mark as a replay differ.
pub fn replay(id: MessageId, destination: &str) -> Result<usize> {
    let rings = ring::enter()?;
    let rows = recorded(id, destination)?;
    if !rows.is_empty() {
        let mut outbox = Appending::new(&rings.outbox)?;
        rows.iter().try_for_each(|row| outbox.append_again(row))?;
        outbox.finish();
    }
    count_many(Counter::EffectReplayed, rows.len());
    Ok(rows.len())
}
