//! Appends effects to the outbox: those of a claim that the transaction holds, messages that result
//! from no other message, and recorded effects that are published again.
//!
//! The row of an effect contains the time of its claim, and [`read`](super::read) returns only the
//! effects with the time of the present claim. So the effects of an execution that was forgotten
//! are not returned. `now()` would be the same for several transactions of one simple query, and
//! transaction ids do not survive a dump.
//!
//! The transaction id is assigned before the first sequence number is taken. Relays depend on this
//! order: see sql/internal/batches.sql.

use super::read::recorded;
use crate::claim::Claimed;
use crate::errors::Result;
use crate::outbox::{self, Appending, Effect, Source, by_source, column};
use crate::pg::{Lookup, from_unix};
use crate::ring::{self, Entered};
use crate::stats::{Counter, count, count_many};
use idem_core::{EffectSpec, MessageId, effect_message_id, memory};
use uuid::Uuid;

/// Records effects of a message. Returns their message ids, in order. Repeated calls in one
/// transaction append to the effects that were recorded before.
pub fn record(claimed: &Claimed, effects: &[EffectSpec]) -> Result<Vec<Uuid>> {
    let message = std::iter::once(Ok((*claimed, effects)));
    record_each(message, effects.len(), claimed.rings())
}

/// Records the effects of several messages, which are `total` effects. Returns their message ids.
pub fn record_each<'a>(
    mut messages: impl Iterator<Item = Result<(Claimed<'a>, &'a [EffectSpec<'a>])>>,
    total: usize,
    rings: &Entered,
) -> Result<Vec<Uuid>> {
    let mut message_ids = memory::reserve(total)?;
    if total == 0 {
        // The claims are checked.
        messages.try_for_each(|message| message.map(drop))?;
        return Ok(message_ids);
    }
    let mut outbox = Appending::new(&rings.outbox)?;
    for message in messages {
        let (claimed, effects) = message?;
        append(&mut outbox, &claimed, effects, &mut message_ids)?;
    }
    outbox.finish();
    count_many(Counter::EffectRecorded, message_ids.len());
    Ok(message_ids)
}

/// Appends a message that does not result from another message, so it needs no claim.
pub fn send(message: &Effect) -> Result<()> {
    let rings = ring::enter()?;
    let mut outbox = Appending::new(&rings.outbox)?;
    outbox.append(message)?;
    outbox.finish();
    count(Counter::EffectSent);
    Ok(())
}

/// Publishes the recorded effects of a message again: copies their rows into the current slice, and
/// returns their number. Only the sequence number, the transaction id and the mark as a replay
/// differ.
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

fn append(
    outbox: &mut Appending,
    claimed: &Claimed,
    effects: &[EffectSpec],
    message_ids: &mut Vec<Uuid>,
) -> Result<()> {
    if effects.is_empty() {
        return Ok(());
    }
    let identity = claimed.identity();
    let key = &identity.id.key;
    let salt = claimed.rings().installation.salt;
    let first = match claimed.next_ordinal() {
        Some(next) => next,
        None => next_ordinal(claimed)?,
    };
    let source = Some(Source {
        destination: identity.destination.id,
        key,
    });
    for (effect, ordinal) in effects.iter().zip(first..) {
        let message_id = effect
            .message_id
            .unwrap_or_else(|| effect_message_id(salt, identity.name, key, ordinal));
        message_ids.push(message_id);
        outbox.append(&Effect {
            source,
            recorded_at: claimed.claimed_at(),
            ordinal,
            message_id,
            topic: &effect.topic,
            key: effect.key.as_deref(),
            kind: effect.kind.as_deref(),
            payload: effect.payload.bytes(),
            content_type: &effect.content_type,
            headers: effect.headers,
            traceparent: effect.traceparent.as_deref(),
            deliver_after: effect.deliver_after.map(from_unix),
        })?;
    }
    claimed.set_next_ordinal(first + effects.len() as i32);
    Ok(())
}

/// Returns one more than the last ordinal that this execution of the message has recorded. The
/// fence after a rotation of the outbox waits for this transaction, so the outbox rotates at most
/// once while it runs. The last ordinal is in the current slice or in the slice before it.
fn next_ordinal(claimed: &Claimed) -> Result<i32> {
    let outbox = &claimed.rings().outbox;
    let mut next = 0;
    for slice in [outbox.current(), outbox.newest_sealed()] {
        let table = by_source(slice.table)?;
        if table.is_empty() {
            continue;
        }
        let mut lookup = Lookup::insert_only(&table, 2);
        lookup.seek(&mut outbox::claim_keys(
            claimed.identity(),
            claimed.claimed_at(),
        ));
        while lookup.next_existing() {
            pgrx::check_for_interrupts!();
            if outbox::is_of(&lookup, claimed.identity()) && lookup.is_mine() {
                next = next.max(
                    lookup
                        .column(column::ORDINAL)
                        .map_or(0, |d| d.value() as i32 + 1),
                );
            }
        }
    }
    Ok(next)
}
