//! Appends effects to the outbox in the transaction that holds the claim.
//!
//! The row of an effect contains the time of its claim, and [`read`](super::read) returns only the
//! effects with the time of the present claim. So the effects of an execution that was forgotten
//! are not returned. `now()` would be the same for several transactions of one simple query, and
//! transaction ids do not survive a dump.
//!
//! The transaction id is assigned before the first sequence number is taken. Relays depend on this
//! order: see sql/internal/batches.sql.

use crate::claim::Claimed;
use crate::errors::Result;
use crate::outbox::{self, Appending, Effect, Source, by_source, column};
use crate::pg::Lookup;
use crate::ring::Entered;
use crate::stats::{Counter, count_many};
use idem_core::{EffectSpec, effect_message_id, memory};
use pgrx::pg_sys;
use uuid::Uuid;

/// Records effects of a message. Returns their message ids, in order. Repeated calls in one
/// transaction append to the effects that were recorded before.
pub fn record(claimed: &Claimed, effects: &[EffectSpec]) -> Result<Vec<Uuid>> {
    let mut message_ids = memory::reserve(effects.len())?;
    if !effects.is_empty() {
        let mut outbox = Appending::new(&claimed.rings().outbox)?;
        append(&mut outbox, claimed, effects, &mut message_ids)?;
        outbox.finish();
    }
    count_many(Counter::EffectRecorded, message_ids.len());
    Ok(message_ids)
}

/// Records the effects of several messages, which are `count` effects. Returns their message ids.
pub fn record_each<'a>(
    mut messages: impl Iterator<Item = Result<(Claimed<'a>, &'a [EffectSpec<'a>])>>,
    count: usize,
    rings: &Entered,
) -> Result<Vec<Uuid>> {
    let mut message_ids = memory::reserve(count)?;
    if count == 0 {
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
            deliver_after: effect.deliver_after.map(since_2000),
        })?;
    }
    claimed.set_next_ordinal(first + effects.len() as i32);
    Ok(())
}

/// Converts microseconds since 1970 to PostgreSQL's microseconds since 2000.
pub fn since_2000(unix_microseconds: i64) -> pg_sys::TimestampTz {
    const EPOCHS_APART: i64 = 946_684_800_000_000;
    unix_microseconds.saturating_sub(EPOCHS_APART)
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
