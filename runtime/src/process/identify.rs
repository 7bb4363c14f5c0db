//! Finds the destination, the policy and the id of a message.

use std::sync::Arc;

use idem_client::{Destination, MessageId};
use tracing::warn;

use super::{settings::Settings, task::Identified};
use crate::{
    Error, Message,
    policy::{MissingId, Policy},
};

/// Returns the destination, the policy and the id of a message.
pub(super) fn identify(settings: &Settings, message: &Message) -> Result<Identified, Error> {
    let destination = message.destination()?;
    let entry = Arc::clone(settings.policies.of(destination.as_str()));
    let id = match message.stored() {
        // Keep the id of the stored message. A new id would make it a different message, and the
        // value that the id came from may no longer be available.
        Some(stored) if !stored.was_unrouted => Some(stored.id.clone()),
        _ => id_of(message, &destination, &entry.policy)?,
    };
    Ok((destination, entry, id))
}

fn id_of(
    message: &Message,
    destination: &Destination,
    policy: &Policy,
) -> Result<Option<MessageId>, Error> {
    let id = policy.id.id_of(message)?;
    if id.is_none() {
        match policy.missing_id {
            MissingId::Reject => {
                return Err(Error::MissingId {
                    destination: destination.to_string(),
                    strategy: policy.id.to_string(),
                });
            }
            MissingId::Unprotected => warn!(
                destination = destination.as_str(),
                strategy = %policy.id,
                "a message without an id is processed unprotected: \
                 a duplicate of it would take effect again"
            ),
        }
    }
    Ok(id)
}
