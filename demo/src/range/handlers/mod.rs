//! Three implementations of handlers for the same messages.

pub mod by_id;
pub mod idem;
pub mod nothing;

use anyhow::Result;
use tokio_postgres::Client;

use super::{
    hazard::Hazard,
    message::{Kind, Message},
    trial_state::TrialState,
};

/// The implementation that a trial tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum System {
    /// Handlers without protection, which treat every delivery as a new message.
    Nothing,
    /// Handlers that are idempotent by id.
    ById,
    /// Handlers that claim each message with idem.
    Idem,
}

impl System {
    /// All systems, from the least to the most protection.
    pub const ALL: [Self; 3] = [Self::Nothing, Self::ById, Self::Idem];

    /// Returns the name that a person reads.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "unprotected",
            Self::ById => "by id",
            Self::Idem => "idem",
        }
    }

    /// Returns the name as a part of identifiers.
    #[must_use]
    pub fn slug(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::ById => "by_id",
            Self::Idem => "idem",
        }
    }
}

/// The context of a handler.
pub struct HandlerContext<'a> {
    /// The connection of the consumer.
    pub client: &'a mut Client,
    /// The state that all consumers of the trial share.
    pub state: &'a TrialState,
    /// The fault that can kill the consumer during this delivery.
    pub hazard: Hazard<'a>,
}

/// Handles one delivery.
pub async fn handle(context: &mut HandlerContext<'_>, message: &Message) -> Result<()> {
    let body = message.body.as_slice();
    match (message.kind, context.state.system) {
        (Kind::FireAt, System::Nothing) => nothing::fire(context, parse(body)?).await,
        (Kind::FireAt, System::ById) => by_id::fire(context, parse(body)?).await,
        (Kind::FireAt, System::Idem) => idem::fire(context, parse(body)?).await,
        (Kind::MoveTarget, System::Nothing) => nothing::move_target(context, parse(body)?).await,
        (Kind::MoveTarget, System::ById) => by_id::move_target(context, parse(body)?).await,
        (Kind::MoveTarget, System::Idem) => idem::move_target(context, parse(body)?).await,
        (Kind::TargetHit, System::Nothing) => nothing::count(context, parse(body)?).await,
        (Kind::TargetHit, System::ById) => by_id::count(context, message.id, parse(body)?).await,
        (Kind::TargetHit, System::Idem) => idem::count(context, message.id, parse(body)?).await,
        // The leader board counts hits only.
        (Kind::TargetMissed, _) => Ok(()),
    }
}

fn parse<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T> {
    Ok(serde_json::from_slice(body)?)
}
