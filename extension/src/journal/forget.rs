//! Forgets the external calls of a message.

use crate::errors::Result;
use crate::identity::Identity;
use crate::pg::{Found, Hold, Lookup, Table, look_again};
use crate::ring::{self, Rings};
use crate::slices::delete_from_slices;
use idem_core::MessageId;
use pgrx::pg_sys;

/// Deletes every event of the external calls of a message. Waits for transactions that are
/// recording one.
pub fn forget(id: MessageId, destination: &str) -> Result<()> {
    let rings = ring::enter()?;
    if let Some(identity) = Identity::find(id, destination)? {
        delete_from_slices(
            &identity.destination,
            &rings,
            Rings::journal_slices,
            |slice, _| Ok(forget_in(slice, &identity)),
        )?;
    }
    Ok(())
}

/// Deletes the events from one slice. Returns whether the slice had one.
fn forget_in(slice: pg_sys::Oid, identity: &Identity) -> bool {
    let table = Table::for_writing(slice);
    let mut lookup = Lookup::insert_only(&table, 2);
    let mut is_deleted = false;
    look_again(|| {
        lookup.seek(&mut identity.keys());
        loop {
            match lookup.next() {
                Found::Nothing => return Some(is_deleted),
                Found::Row => {
                    if lookup.hold_found(true)? == Hold::Held {
                        lookup.delete();
                        is_deleted = true;
                    }
                    return None;
                }
                Found::InProgress(writer) if writer.retracts() => (),
                Found::InProgress(writer) => {
                    lookup.seek(&mut identity.keys());
                    writer.wait();
                    return None;
                }
            }
        }
    })
}
