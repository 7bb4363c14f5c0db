//! Handlers with nothing: each delivery is taken for a new message.
//!
//! They are not careless: the work is one transaction, facts are published after its commit, and
//! the message is acknowledged last. So nothing gets lost, and everything can happen twice.

use anyhow::Result;
use uuid::Uuid;

use super::Desk;
use crate::range::{
    business, leader_board,
    message::{Fact, FireAt, MoveTarget},
};

/// Decides, keeps the shot, tells.
pub async fn fire(desk: &mut Desk<'_>, shot: FireAt) -> Result<()> {
    let tx = desk.client.transaction().await?;
    let fact = business::decide(&tx, shot).await?;
    business::keep_shot(&tx, &fact).await?;
    desk.hazard.mid_transaction().await?;
    tx.commit().await?;
    desk.hazard.after_commit()?;
    desk.world.publish(fact.message(Uuid::new_v4())?);
    Ok(())
}

/// Moves the target, back too.
pub async fn move_target(desk: &mut Desk<'_>, order: MoveTarget) -> Result<()> {
    let tx = desk.client.transaction().await?;
    business::move_target(&tx, &order).await?;
    desk.hazard.mid_transaction().await?;
    tx.commit().await?;
    desk.hazard.after_commit()?;
    Ok(())
}

/// Counts the hit, each time that it is heard of.
pub async fn count(desk: &mut Desk<'_>, fact: Fact) -> Result<()> {
    let tx = desk.client.transaction().await?;
    leader_board::count(&tx, &fact).await?;
    desk.hazard.mid_transaction().await?;
    tx.commit().await?;
    desk.hazard.after_commit()?;
    Ok(())
}
