//! Work as a claim looks at it: before it writes, so that it writes nothing in vain, and after.

use super::identity::Identity;
use super::row::State;
use super::tables::current_work;
use crate::errors::Result;
use crate::pg::{self, Found, Glimpse, Hold, Lookup, Table, wait_for};
use crate::ring::Rings;
use std::cell::OnceCell;

/// What stands in the way of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Nothing, or nothing any longer.
    Clear,
    /// A lease that was acquired, for so many microseconds.
    Leased { remaining: i64 },
    /// A transaction that runs is at the work, and the caller does not wait.
    InProgress,
}

/// Both tables of work, kept from turning. As long as neither has a page, which is as long as nobody leases or receives,
/// a look costs no more than to ask for their sizes.
pub struct Glance<'a> {
    rings: &'a Rings,
    pair: [Glimpse; 2],
    current: OnceCell<Table>,
}

impl<'a> Glance<'a> {
    pub fn open(rings: &'a Rings) -> Self {
        Glance {
            rings,
            pair: rings.work.map(Glimpse::of),
            current: OnceCell::new(),
        }
    }

    /// Looks, and waits for who is about to change what it sees when it is to wait.
    pub fn look(&self, identity: &Identity, wait: bool) -> Result<Standing> {
        let Some(work) = self.work()? else {
            return Ok(Standing::Clear);
        };
        let mut row = Lookup::new(work, 2);
        let mut keys = identity.keys();
        loop {
            match row.find(&mut keys) {
                Found::Nothing => return Ok(Standing::Clear),
                Found::Row => {
                    identity.check_work(&row)?;
                    return Ok(standing(&State::read(&row)));
                }
                Found::InProgress { .. } if !wait => return Ok(Standing::InProgress),
                Found::InProgress { xid, speculative_token } => {
                    row.seek(&mut keys);
                    wait_for(xid, speculative_token);
                }
            }
            pgrx::check_for_interrupts!();
        }
    }

    /// For who has inserted the claim: deletes the work, unless it stands in the way.
    pub fn take(&self, identity: &Identity, wait: bool) -> Result<Standing> {
        let Some(work) = self.work()? else {
            return Ok(Standing::Clear);
        };
        if Lookup::new(work, 2).find(&mut identity.keys()) == Found::Nothing {
            return Ok(Standing::Clear);
        }
        // Locked to the end of the transaction: a turn would copy the row as long as its deletion is not committed.
        let work = Table::for_writing(current_work(self.rings)?);
        let mut row = Lookup::new(&work, 2);
        match row.hold(&mut identity.keys(), wait) {
            Hold::Nothing => Ok(Standing::Clear),
            Hold::Busy => Ok(Standing::InProgress),
            Hold::Held => {
                identity.check_work(&row)?;
                let standing = standing(&State::read(&row));
                if standing == Standing::Clear {
                    row.delete();
                }
                Ok(standing)
            }
        }
    }

    /// The current table; `None` while there is no work at all.
    fn work(&self) -> Result<Option<&Table>> {
        if self.pair.iter().all(Glimpse::is_empty) {
            return Ok(None);
        }
        if self.current.get().is_none() {
            let _ = self.current.set(Table::for_reading(current_work(self.rings)?));
        }
        Ok(self.current.get())
    }
}

/// What was handed out from the durable inbox is completed by a claim, so its lease is no obstacle: of two holders the
/// claim itself lets one win. Nor is a lease that has run out, a rest after a failure, or death.
fn standing(state: &State) -> Standing {
    let remaining = state.due_at.saturating_sub(pg::clock());
    if state.leased && !state.has_body && remaining > 0 {
        Standing::Leased { remaining }
    } else {
        Standing::Clear
    }
}
