//! Handlers that are idempotent by id, in the two forms that people write.
//!
//! **The state changes once per id** (`fire`, `move_target`): a unique key makes the second write a
//! no-op, in the same transaction as the work. But the fact must be told after the commit, and a
//! consumer can die in between. So a duplicate must tell it again, for all it knows the first one
//! never did; and what it tells is computed from the world as it is *now*. The state is right, and
//! the messages contradict it.
//!
//! **A filter in front of the handler** (`count`): middleware keeps the ids that it has seen and
//! drops the rest. It has a store and a transaction of its own, for it does not know the handler.
//! To withstand two duplicates at the same time it must mark *before* it lets through (`SET NX`,
//! `INSERT ON CONFLICT`). A consumer that dies in between has marked what was never handled: the
//! message is lost.
//!
//! The ids are the best that there are: the attempt's own, also as the id of its facts.

use anyhow::Result;
use tokio_postgres::{Client, GenericClient, types::Type};
use uuid::Uuid;

use super::Desk;
use crate::range::{
    business, leader_board,
    message::{Fact, FireAt, MoveTarget},
};

/// What these handlers know ids by, on top of the tables that all have.
pub async fn add_keys(client: &Client) -> Result<()> {
    client
        .batch_execute("ALTER TABLE shot ADD PRIMARY KEY (attempt); CREATE TABLE processed (id uuid PRIMARY KEY)")
        .await?;
    Ok(())
}

/// Decides, keeps the shot unless it is kept, tells in any case.
pub async fn fire(desk: &mut Desk<'_>, shot: FireAt) -> Result<()> {
    let tx = desk.client.transaction().await?;
    let fact = business::decide(&tx, shot).await?;
    tx.execute_typed(
        "INSERT INTO shot (attempt, player, hit) VALUES ($1, $2, $3) ON CONFLICT (attempt) DO NOTHING",
        &[
            (&fact.attempt, Type::UUID),
            (&fact.player, Type::INT4),
            (&fact.hit, Type::BOOL),
        ],
    )
    .await?;
    desk.hazard.mid_transaction().await?;
    tx.commit().await?;
    desk.hazard.after_commit()?;
    desk.world.publish(fact.message(fact.attempt)?);
    Ok(())
}

/// Moves the target unless this move was made.
pub async fn move_target(desk: &mut Desk<'_>, order: MoveTarget) -> Result<()> {
    let tx = desk.client.transaction().await?;
    let is_new = mark(&tx, order.order).await?;
    if is_new {
        business::move_target(&tx, &order).await?;
    }
    desk.hazard.mid_transaction().await?;
    tx.commit().await?;
    desk.hazard.after_commit()?;
    Ok(())
}

/// Counts the hit if the filter lets it through.
pub async fn count(desk: &mut Desk<'_>, id: Uuid, fact: Fact) -> Result<()> {
    let is_new = mark(&*desk.client, id).await?;
    if is_new {
        let tx = desk.client.transaction().await?;
        leader_board::count(&tx, &fact).await?;
        desk.hazard.mid_transaction().await?;
        tx.commit().await?;
    }
    desk.hazard.after_commit()?;
    Ok(())
}

/// Marks an id as processed; false when it was.
async fn mark(client: &impl GenericClient, id: Uuid) -> Result<bool> {
    let marked = client
        .execute_typed(
            "INSERT INTO processed (id) VALUES ($1) ON CONFLICT DO NOTHING",
            &[(&id, Type::UUID)],
        )
        .await?;
    Ok(marked == 1)
}
