//! Three implementations of handlers for the same messages.

pub mod by_id;
mod context;
pub mod idem;
pub mod nothing;

use anyhow::Result;

use super::{
    message::{Kind, Message},
    system::System,
};
pub use context::HandlerContext;

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
