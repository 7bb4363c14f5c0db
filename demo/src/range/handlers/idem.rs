//! Handlers that use idem: the claim, the business writes and the facts commit in one transaction.
//!
//! A duplicate finds the claim and the fact that the first execution recorded. The duplicate does
//! not decide again whether the shot hit.

use anyhow::{Result, ensure};
use idem_client::{Claim, Effect, MessageId, commit, effects, try_claim};
use uuid::Uuid;

use super::context::HandlerContext;
use crate::range::{
    business,
    message::{Fact, FireAt, MoveTarget},
};

/// Claims the message, decides, inserts the shot and records the fact. A duplicate publishes the
/// recorded fact.
pub async fn fire(context: &mut HandlerContext<'_>, shot: FireAt) -> Result<()> {
    let id = MessageId::from(shot.attempt);
    let destination = &context.state.targets;
    let tx = context.client.transaction().await?;
    let Claim::New(claimed) = try_claim(&tx, &id, destination).await? else {
        let recorded = effects(&tx, &id, destination).await?;
        ensure!(
            recorded.len() == 1,
            "attempt {id} has {} effects",
            recorded.len()
        );
        context.hazard.mid_transaction().await?;
        tx.rollback().await?;
        for effect in recorded {
            context
                .state
                .publish(Fact::published(effect.message_id, effect.payload.to_vec())?);
        }
        return Ok(());
    };
    let fact = business::decide(&tx, shot).await?;
    business::keep_shot(&tx, &fact).await?;
    context.hazard.mid_transaction().await?;
    let effect = Effect::json(&context.state.topic, &fact)?
        .key(fact.target.to_string())
        .message_type(fact.kind().name());
    claimed.record_effects(&[effect]).await?;
    commit(tx).await?;
    // The relay publishes the fact, so this function does not.
    context.hazard.after_commit()?;
    Ok(())
}

/// Claims the message and moves the target.
pub async fn move_target(context: &mut HandlerContext<'_>, order: MoveTarget) -> Result<()> {
    let tx = context.client.transaction().await?;
    if let Claim::New(_) = try_claim(&tx, &order.order.into(), &context.state.targets).await? {
        business::move_target(&tx, &order).await?;
    }
    context.hazard.mid_transaction().await?;
    commit(tx).await?;
    context.hazard.after_commit()?;
    Ok(())
}

/// Claims the fact by its message id and counts the hit.
pub async fn count(context: &mut HandlerContext<'_>, id: Uuid, fact: Fact) -> Result<()> {
    let tx = context.client.transaction().await?;
    if let Claim::New(_) = try_claim(&tx, &id.into(), &context.state.board).await? {
        business::count_hit(&tx, &fact).await?;
    }
    context.hazard.mid_transaction().await?;
    commit(tx).await?;
    context.hazard.after_commit()?;
    Ok(())
}
