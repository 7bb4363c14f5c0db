//! A message with everything that is determined before the first query.

use deadpool_postgres::Pool;
use idem_client::{Destination, MessageId, lease::Held};
use tracing::Span;

use super::{doubt::Doubt, prepare::Ready, settings::Settings};
use crate::{
    Message,
    policy::{Policy, Style},
};

/// What the statements for a message need.
#[derive(Clone, Copy)]
pub(crate) struct Task<'t> {
    pub(crate) pool: &'t Pool,
    pub(crate) message: &'t Message,
    /// `None` for a plain transaction that sends its effects without a claim.
    pub(crate) id: Option<&'t MessageId>,
    pub(crate) destination: &'t Destination,
    pub(crate) policy: &'t Policy,
    pub(crate) settings: &'t Settings,
    /// The lease to complete in place of a claim, if attempts are counted.
    pub(crate) held: Option<&'t Held>,
    /// The span of the message.
    pub(crate) span: &'t Span,
}

impl<'t> Task<'t> {
    pub(crate) fn of(settings: &'t Settings, pool: &'t Pool, ready: &'t Ready) -> Self {
        Self {
            pool,
            message: &ready.message,
            id: ready.id.as_ref(),
            destination: &ready.destination,
            policy: ready.policy(),
            settings,
            held: None,
            span: ready.processing.span(),
        }
    }
}

/// How a transaction protects its message.
#[derive(Clone, Copy)]
pub(crate) enum Protection<'t> {
    /// The eager style: the claim shares the round trip of BEGIN.
    ClaimFirst(&'t MessageId),
    /// The reactive style: the claim follows the handler.
    ClaimLast(&'t MessageId),
    /// The completion of the lease claims the message. No earlier claim is looked for, because
    /// `acquire` has done that, and the completion fails if the lease is lost.
    Lease(&'t Held),
    /// Nothing is claimed in the database.
    None,
}

impl<'t> Protection<'t> {
    pub(crate) fn of(task: &Task<'t>, doubt: &Doubt) -> Self {
        match (task.held, task.id, task.policy.style) {
            (Some(held), ..) => Self::Lease(held),
            (None, None, _) => Self::None,
            // After an ambiguous commit, claim first. If the commit took effect, a handler that
            // runs before the claim would see the writes of its earlier run.
            (None, Some(id), Style::Reactive) if !doubt.is_open() => Self::ClaimLast(id),
            (None, Some(id), _) => Self::ClaimFirst(id),
        }
    }
}
