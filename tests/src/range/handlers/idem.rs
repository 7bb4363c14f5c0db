//! Handlers on idem: claim, work and facts are one transaction.
//!
//! Whoever comes second finds the claim, and with it what the first has decided. It need not decide
//! again, and it cannot.

use anyhow::{Result, ensure};
use idem_client::{Claim, Effect, MessageId, commit, effects, try_claim};
use uuid::Uuid;

use super::Desk;
use crate::range::{
    business, leader_board,
    message::{Fact, FireAt, MoveTarget},
};

/// Claims, decides, keeps the shot and records the fact. A duplicate tells the fact on record.
pub async fn fire(desk: &mut Desk<'_>, shot: FireAt) -> Result<()> {
    let id = MessageId::from(shot.attempt);
    let destination = &desk.world.targets;
    let tx = desk.client.transaction().await?;
    let Claim::New(claimed) = try_claim(&tx, &id, destination).await? else {
        let recorded = effects(&tx, &id, destination).await?;
        ensure!(
            recorded.len() == 1,
            "attempt {id} has {} effects",
            recorded.len()
        );
        desk.hazard.mid_transaction().await?;
        tx.rollback().await?;
        for effect in recorded {
            desk.world
                .publish(Fact::published(effect.message_id, effect.payload)?);
        }
        return Ok(());
    };
    let fact = business::decide(&tx, shot).await?;
    business::keep_shot(&tx, &fact).await?;
    desk.hazard.mid_transaction().await?;
    let effect = Effect::json(&desk.world.topic, &fact)?
        .key(fact.target.to_string())
        .message_type(fact.kind().name());
    claimed.record_effects(&[effect]).await?;
    commit(tx).await?;
    // The relay tells it.
    desk.hazard.after_commit()?;
    Ok(())
}

/// Claims and moves the target.
pub async fn move_target(desk: &mut Desk<'_>, order: MoveTarget) -> Result<()> {
    let tx = desk.client.transaction().await?;
    if let Claim::New(_) = try_claim(&tx, &order.order.into(), &desk.world.targets).await? {
        business::move_target(&tx, &order).await?;
    }
    desk.hazard.mid_transaction().await?;
    commit(tx).await?;
    desk.hazard.after_commit()?;
    Ok(())
}

/// Claims the fact by the id of its message and counts the hit.
pub async fn count(desk: &mut Desk<'_>, id: Uuid, fact: Fact) -> Result<()> {
    let tx = desk.client.transaction().await?;
    if let Claim::New(_) = try_claim(&tx, &id.into(), &desk.world.board).await? {
        leader_board::count(&tx, &fact).await?;
    }
    desk.hazard.mid_transaction().await?;
    commit(tx).await?;
    desk.hazard.after_commit()?;
    Ok(())
}
