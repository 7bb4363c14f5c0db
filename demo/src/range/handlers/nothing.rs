//! Handlers without protection: they treat each delivery as a new message.
//!
//! They are otherwise written with care: the business writes are one transaction, the fact is
//! published after the commit, and the message is acknowledged last. So no message is lost, and
//! every message can take effect twice.

use anyhow::Result;
use uuid::Uuid;

use super::context::HandlerContext;
use crate::range::{
    business,
    message::{Fact, FireAt, MoveTarget},
};

/// Decides, inserts the shot and publishes the fact.
pub async fn fire(context: &mut HandlerContext<'_>, shot: FireAt) -> Result<()> {
    let tx = context.client.transaction().await?;
    let fact = business::decide(&tx, shot).await?;
    business::keep_shot(&tx, &fact).await?;
    context.hazard.commit(tx).await?;
    context.state.publish(fact.message(Uuid::new_v4())?);
    Ok(())
}

/// Moves the target. A late duplicate moves it back to an old position.
pub async fn move_target(context: &mut HandlerContext<'_>, order: MoveTarget) -> Result<()> {
    let tx = context.client.transaction().await?;
    business::move_target(&tx, &order).await?;
    context.hazard.commit(tx).await
}

/// Counts the hit at each delivery.
pub async fn count(context: &mut HandlerContext<'_>, fact: Fact) -> Result<()> {
    let tx = context.client.transaction().await?;
    business::count_hit(&tx, &fact).await?;
    context.hazard.commit(tx).await
}
