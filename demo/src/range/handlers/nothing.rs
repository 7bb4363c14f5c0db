//! Handlers without protection: they treat each delivery as a new message.
//!
//! They are otherwise written with care: the business writes are one transaction, the fact is
//! published after the commit, and the message is acknowledged last. So no message is lost, and
//! every message can take effect twice.

use anyhow::Result;
use uuid::Uuid;

use super::Desk;
use crate::range::{
    business, leader_board,
    message::{Fact, FireAt, MoveTarget},
};

/// Decides, inserts the shot and publishes the fact.
pub async fn fire(desk: &mut Desk<'_>, shot: FireAt) -> Result<()> {
    let tx = desk.client.transaction().await?;
    let fact = business::decide(&tx, shot).await?;
    business::keep_shot(&tx, &fact).await?;
    desk.hazard.mid_transaction().await?;
    tx.commit().await?;
    desk.hazard.after_commit()?;
    desk.state.publish(fact.message(Uuid::new_v4())?);
    Ok(())
}

/// Moves the target. A late duplicate moves it back to an old position.
pub async fn move_target(desk: &mut Desk<'_>, order: MoveTarget) -> Result<()> {
    let tx = desk.client.transaction().await?;
    business::move_target(&tx, &order).await?;
    desk.hazard.mid_transaction().await?;
    tx.commit().await?;
    desk.hazard.after_commit()?;
    Ok(())
}

/// Counts the hit at each delivery.
pub async fn count(desk: &mut Desk<'_>, fact: Fact) -> Result<()> {
    let tx = desk.client.transaction().await?;
    leader_board::count(&tx, &fact).await?;
    desk.hazard.mid_transaction().await?;
    tx.commit().await?;
    desk.hazard.after_commit()?;
    Ok(())
}
