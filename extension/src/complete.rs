//! Completes a leased message: the lease becomes a claim with its effects, in one transaction with
//! the caller's other writes.

use crate::claim::{Outcome, Terms, claim_identity};
use crate::effects::record;
use crate::errors::{Error, Result};
use crate::identity::Identity;
use crate::pending::{delete_pending, lease, tables};
use crate::ring;
use idem_core::{EffectSpec, MessageId};
use uuid::Uuid;

/// Completes a message and returns the message ids of the effects. An expired lease can be
/// completed as long as no other consumer has leased or claimed the message. Fails with 55000 if
/// the lease is lost, and with 55P03 if another transaction is claiming the message.
pub fn complete(
    id: MessageId,
    name: &str,
    token: i64,
    effects: &[EffectSpec],
) -> Result<Vec<Uuid>> {
    let rings = ring::enter()?;
    let identity = Identity::find(id, name)?.ok_or_else(|| Error::lease_lost(name))?;
    let table = tables::current(&rings)?;
    let (mut row, _) = lease::lock_leased(&identity, &table, token)?;
    let claimed = match claim_identity(identity, &rings, Terms::LEASED)? {
        Outcome::Claimed(claimed) => claimed,
        // The other claimer has not looked at the pending row yet, or the lease does not stop it
        // (it has expired, or is one of idem_next), or the lease has stopped it after it had
        // written its row. This transaction has locked the pending row, and in the first two cases
        // the claimer will wait for it. So waiting for the claimer would be a deadlock.
        Outcome::InProgress => {
            return Err(Error::ClaimInProgress {
                destination: name.to_owned(),
            });
        }
        _ => return Err(Error::lease_lost(name)),
    };
    delete_pending(&mut row);
    record(&claimed, effects)
}
