//! Appends effects to the outbox in the transaction that holds the claim.

use crate::claim::my_claim;
use crate::destination::Destination;
use crate::errors::{Error, Result};
use crate::outbox::{self, Effect, Source, by_source, column};
use crate::pg::Lookup;
use crate::ring::{self, Rings};
use crate::stats::{Counter, count_many};
use idem_core::{EffectSpec, Key, MessageId, effect_message_id, memory};
use pgrx::pg_sys;
use pgrx::prelude::*;
use uuid::Uuid;

/// Records effects for a message that this transaction has claimed. Returns their message ids, in
/// order. Repeated calls in one transaction append to the effects that were recorded before. Fails
/// with 55000 if this transaction does not hold the claim.
pub fn record(id: MessageId, destination: &str, effects: &[EffectSpec]) -> Result<Vec<Uuid>> {
    idem_core::check_destination(destination)?;
    let rings = ring::enter()?;
    let Some((known, claimed_at)) = my_claim(&id, destination, &rings)? else {
        return Err(Error::NotClaimed {
            destination: destination.to_owned(),
        });
    };
    if effects.is_empty() {
        return Ok(Vec::new());
    }
    let first = next_ordinal(&known, claimed_at, &id.key, &rings)?;
    let source = Some(Source {
        destination: known.id,
        key: &id.key,
    });
    let mut message_ids = memory::reserve(effects.len())?;
    let rows = effects.iter().zip(first..).map(|(effect, ordinal)| {
        let message_id = effect
            .message_id
            .unwrap_or_else(|| effect_message_id(destination, &id.key, ordinal));
        message_ids.push(message_id);
        Effect {
            source,
            recorded_at: claimed_at,
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
        }
    });
    outbox::append(&rings.outbox, rows)?;
    count_many(Counter::EffectRecorded, effects.len());
    Ok(message_ids)
}

/// Converts microseconds since 1970 to PostgreSQL's microseconds since 2000.
pub fn since_2000(unix_microseconds: i64) -> pg_sys::TimestampTz {
    const EPOCHS_APART: i64 = 946_684_800_000_000;
    unix_microseconds.saturating_sub(EPOCHS_APART)
}

/// Returns one more than the last ordinal that this execution of the message has recorded. While a
/// transaction with a claim runs, the outbox rotates at most once, so the last ordinal is in the
/// current slice or in the slice before it.
fn next_ordinal(
    destination: &Destination,
    claimed_at: pg_sys::TimestampTz,
    key: &Key,
    rings: &Rings,
) -> Result<i32> {
    let mut next = 0;
    for slice in [rings.outbox.current(), rings.outbox.sealed()[1]] {
        let Some(table) = by_source(&rings.outbox, slice)?.filter(|table| !table.is_empty()) else {
            continue;
        };
        let mut lookup = Lookup::insert_only(&table, 2);
        lookup.seek(&mut source_keys(destination.id, key));
        while lookup.next_settled() {
            pgrx::check_for_interrupts!();
            let recorded_at = lookup.column(column::RECORDED_AT).map(|d| d.value() as i64);
            if recorded_at == Some(claimed_at) && lookup.is_mine() {
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

/// Returns the scan keys of the index on the source.
pub fn source_keys(destination: i32, key: &Key) -> [pg_sys::ScanKeyData; 2] {
    let eq = pg_sys::BTEqualStrategyNumber as u16;
    // SAFETY: ScanKeyInit fills the zeroed keys; the uuid datum lives in the current memory
    // context.
    unsafe {
        let mut keys: [pg_sys::ScanKeyData; 2] = std::mem::zeroed();
        let uuid = pgrx::Uuid::from_bytes(*key.bytes())
            .into_datum()
            .unwrap_or(pg_sys::Datum::from(0));
        pg_sys::ScanKeyInit(&mut keys[0], 1, eq, pg_sys::F_UUID_EQ.into(), uuid);
        pg_sys::ScanKeyInit(
            &mut keys[1],
            2,
            eq,
            pg_sys::F_INT4EQ.into(),
            pg_sys::Datum::from(destination),
        );
        keys
    }
}
