//! Reads the present state of an identity in the inbox.

use super::identity::Identity;
use crate::claim::{check_claim, slices_of, text_id};
use crate::destination::find;
use crate::errors::{Result, given};
use crate::pg::{Found, Lookup, Table, wait_for};
use crate::ring::{self, Rings};
use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InboxState {
    Free,
    Claimed,
    /// Claimed by a running transaction.
    InProgress {
        xid: pg_sys::TransactionId,
        speculative_token: u32,
    },
}

impl InboxState {
    /// Waits until the claim in progress has ended. The caller must hold no lock that the claim may
    /// wait for.
    pub fn wait(self) {
        if let InboxState::InProgress {
            xid,
            speculative_token,
        } = self
        {
            wait_for(xid, speculative_token);
        }
    }
}

/// The slices in which a claim can be, open for look-ups.
pub struct Inbox(Vec<Table>);

impl Inbox {
    /// Opens the slices. The caller must have entered the rings.
    pub fn open(identity: &Identity, rings: &Rings) -> Self {
        Inbox(
            slices_of(&identity.destination, rings)
                .into_iter()
                .map(Table::for_reading)
                .collect(),
        )
    }

    /// Checks the slices once, without waiting.
    pub fn look(&self, identity: &Identity) -> Result<InboxState> {
        let mut keys = identity.keys();
        for slice in &self.0 {
            let mut lookup = Lookup::insert_only(slice, 2);
            match lookup.find(&mut keys) {
                Found::Nothing => (),
                Found::Row => {
                    check_claim(&lookup, &identity.id, identity.name)?;
                    lookup.rely();
                    return Ok(InboxState::Claimed);
                }
                Found::InProgress {
                    xid,
                    speculative_token,
                } => {
                    return Ok(InboxState::InProgress {
                        xid,
                        speculative_token,
                    });
                }
            }
        }
        Ok(InboxState::Free)
    }
}

/// Returns the state of a message in the inbox, for functions in SQL.
#[pg_extern(
    requires = ["schema"],
    sql = r#"
CREATE FUNCTION idem.claim_state(id text, destination text) RETURNS text
LANGUAGE c AS 'MODULE_PATHNAME', 'claim_state_wrapper';
"#
)]
fn claim_state(
    id: Option<&str>,
    destination: Option<&str>,
) -> std::result::Result<&'static str, ErrorReport> {
    let (id, name) = (text_id(id)?, given(destination, "destination")?);
    let rings = ring::enter()?;
    let Some(destination) = find(name)? else {
        return Ok("free");
    };
    let identity = Identity {
        id,
        destination,
        name,
    };
    Ok(match Inbox::open(&identity, &rings).look(&identity)? {
        InboxState::Free => "free",
        InboxState::Claimed => "claimed",
        InboxState::InProgress { .. } => "in_progress",
    })
}
