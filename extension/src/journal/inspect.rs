//! Reads the external calls of a message. Writes nothing and works on a standby.

use super::history::{CallEntry, CallHistory};
use crate::errors::Result;
use crate::identity::Identity;
use crate::pg::{Lookup, Table};
use crate::ring::{self, Rings};
use crate::slices::{slices_to_read, tables_of};
use idem_core::MessageId;
use pgrx::pg_sys;
use std::collections::BTreeMap;

/// The events of each external call of a message, by step.
type CallHistories = BTreeMap<String, CallHistory>;

/// Returns the events of each external call of a message, by step. Includes committed events and
/// those of this transaction.
pub fn calls_of(id: MessageId, destination: &str) -> Result<Vec<(String, CallHistory)>> {
    let rings = ring::look()?;
    let Some(identity) = Identity::find(id, destination)? else {
        return Ok(Vec::new());
    };
    let of_ring = tables_of(&identity.destination, &rings.journal_slices());
    let mut calls = CallHistories::new();
    for &slice in &of_ring {
        read(slice, &identity, &mut calls);
    }
    for slice in slices_to_read(&identity.destination, &rings, Rings::journal_slices)? {
        if !of_ring.contains(&slice.oid) {
            let mut earlier = CallHistories::new();
            read(slice.oid, &identity, &mut earlier);
            for (step, events) in earlier {
                calls.entry(step).or_default().add_earlier(events);
            }
        }
    }
    let mut calls: Vec<_> = calls
        .into_iter()
        .map(|(step, history)| (step, history.with_attempts()))
        .collect();
    calls.sort_by_key(|(_, history)| history.began_at());
    Ok(calls)
}

/// Adds the events of one slice.
fn read(slice: pg_sys::Oid, identity: &Identity, calls: &mut CallHistories) {
    let table = Table::for_reading(slice);
    if table.is_empty() {
        return;
    }
    let mut lookup = Lookup::insert_only(&table, 2);
    lookup.seek(&mut identity.keys());
    while lookup.next_existing() {
        if let Some((step, entry)) = CallEntry::of(&lookup) {
            calls.entry(step).or_default().add(entry);
        }
    }
}
