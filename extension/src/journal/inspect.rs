//! Reads the external calls of a message. Writes nothing and works on a standby.

use super::book::{CallEntry, CallHistory};
use crate::errors::Result;
use crate::identity::Identity;
use crate::pg::{Lookup, Table};
use crate::ring::{self, Rings};
use crate::slices::slices_to_read;
use idem_core::MessageId;
use std::collections::BTreeMap;

/// Returns the events of each external call of a message, by step. Includes committed events and
/// those of this transaction.
pub fn calls_of(id: MessageId, destination: &str) -> Result<Vec<(String, CallHistory)>> {
    let rings = ring::look()?;
    let Some(identity) = Identity::find(id, destination)? else {
        return Ok(Vec::new());
    };
    let mut keys = identity.keys();
    let mut pages: BTreeMap<String, CallHistory> = BTreeMap::new();
    for slice in slices_to_read(&identity.destination, &rings, Rings::with_journal_slices)? {
        let table = Table::for_reading(slice);
        if table.is_empty() {
            continue;
        }
        let mut lookup = Lookup::insert_only(&table, 2);
        lookup.seek(&mut keys);
        while lookup.next_existing() {
            if let Some((step, line)) = CallEntry::of(&lookup) {
                pages.entry(step).or_default().add(line);
            }
        }
    }
    let mut pages: Vec<_> = pages
        .into_iter()
        .map(|(step, page)| (step, page.with_attempts()))
        .collect();
    pages.sort_by_key(|(_, page)| page.began_at());
    Ok(pages)
}
