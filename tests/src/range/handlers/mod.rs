//! Three ways to handle the same messages.

pub mod by_id;
pub mod idem;
pub mod nothing;

use anyhow::Result;
use tokio_postgres::Client;

use super::{
    hazard::Hazard,
    message::{Kind, Message},
    world::World,
};

/// The handlers that a trial is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum System {
    /// Handlers that take every delivery for a new message.
    Nothing,
    /// Handlers that change their state once per id.
    ById,
    /// Handlers that claim.
    Idem,
}

impl System {
    /// All of them, from the least to the most.
    pub const ALL: [Self; 3] = [Self::Nothing, Self::ById, Self::Idem];

    /// The name for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::ById => "by id",
            Self::Idem => "idem",
        }
    }

    /// The name as a part of other names.
    #[must_use]
    pub fn slug(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::ById => "by_id",
            Self::Idem => "idem",
        }
    }
}

/// What a handler works with.
pub struct Desk<'a> {
    /// The consumer's connection.
    pub client: &'a mut Client,
    /// The shared rest.
    pub world: &'a World,
    /// What may befall the consumer meanwhile.
    pub hazard: Hazard<'a>,
}

/// Handles one delivery.
pub async fn handle(desk: &mut Desk<'_>, message: &Message) -> Result<()> {
    let body = message.body.as_slice();
    match (message.kind, desk.world.system) {
        (Kind::FireAt, System::Nothing) => nothing::fire(desk, parse(body)?).await,
        (Kind::FireAt, System::ById) => by_id::fire(desk, parse(body)?).await,
        (Kind::FireAt, System::Idem) => idem::fire(desk, parse(body)?).await,
        (Kind::MoveTarget, System::Nothing) => nothing::move_target(desk, parse(body)?).await,
        (Kind::MoveTarget, System::ById) => by_id::move_target(desk, parse(body)?).await,
        (Kind::MoveTarget, System::Idem) => idem::move_target(desk, parse(body)?).await,
        (Kind::TargetHit, System::Nothing) => nothing::count(desk, parse(body)?).await,
        (Kind::TargetHit, System::ById) => by_id::count(desk, message.id, parse(body)?).await,
        (Kind::TargetHit, System::Idem) => idem::count(desk, message.id, parse(body)?).await,
        // The board shows hits only.
        (Kind::TargetMissed, _) => Ok(()),
    }
}

fn parse<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T> {
    Ok(serde_json::from_slice(body)?)
}
