//! A message with everything that is determined before the first query.

use std::sync::Arc;

use deadpool_postgres::Pool;
use idem_client::{Destination, MessageId, lease::Held};
use tracing::Span;

use super::settings::Settings;
use crate::{
    Error, Message, Processed,
    memory::Turn,
    policy::{Entry, Policy, Style},
    telemetry::Processing,
};

/// The result of a message.
pub(crate) type ProcessResult = Result<Processed, Error>;

/// The destination of a message, the entry of its policy, and its id; `None` if it has no id and
/// the policy accepts that.
pub(crate) type Identified = (Destination, Arc<Entry>, Option<MessageId>);

/// A message to process, after the filters.
pub(crate) struct Ready {
    pub(crate) message: Message,
    pub(crate) destination: Destination,
    pub(crate) entry: Arc<Entry>,
    /// The id to claim; `None` if nothing is claimed in the database.
    pub(crate) id: Option<MessageId>,
    /// The turn to process the message, if the store is the memory of this process.
    pub(crate) turn: Option<Turn>,
    pub(crate) processing: Processing,
}

/// A message to process, or its result if it needs no further step.
#[expect(
    clippy::large_enum_variant,
    reason = "the value is not stored, and most values are the large variant"
)]
pub(crate) enum Prepared {
    Ready(Ready),
    Done(ProcessResult),
}

impl Ready {
    pub(crate) fn policy(&self) -> &Policy {
        &self.entry.policy
    }
}

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

/// The error of an earlier commit of this message, if the result of that commit is unknown. The
/// next claim shows the result.
pub(crate) type Doubt = Option<Arc<tokio_postgres::Error>>;

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
            (None, Some(id), Style::Reactive) if doubt.is_none() => Self::ClaimLast(id),
            (None, Some(id), _) => Self::ClaimFirst(id),
        }
    }
}
