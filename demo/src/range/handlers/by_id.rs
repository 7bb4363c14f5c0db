//! Handlers that are idempotent by id, in the two usual forms.
//!
//! **The state changes once per id** (`fire`, `move_target`): a unique key turns the second write
//! into a no-op, in the same transaction as the business writes. But the fact is published after
//! the commit, and the consumer can be killed before it publishes. So a duplicate must publish the
//! fact again, because the handler cannot find out whether the first execution published it. The
//! handler computes the fact from the position that the target has *now*. So the state is right,
//! but the published facts can contradict it.
//!
//! **A filter in front of the handler** (`count`): middleware stores the ids of the messages that
//! it has seen and drops duplicates. The middleware does not know the handler, so it has its own
//! store and its own transaction. To be correct for two concurrent duplicates it must mark the id
//! *before* the handler runs (`SET NX`, `INSERT ON CONFLICT`). When the consumer is killed after
//! the mark and before the end of the handler, the redelivery is dropped as a duplicate: the
//! message is lost.
//!
//! These handlers get the best possible ids: the id of the attempt is also the message id of its
//! facts.

use anyhow::Result;
use tokio_postgres::{Client, GenericClient, types::Type};
use uuid::Uuid;

use super::context::HandlerContext;
use crate::range::{
    business,
    message::{Fact, FireAt, MoveTarget},
};

/// Adds a unique key to a table that all systems have, and a table of processed ids. These handlers
/// need both.
pub async fn add_keys(client: &Client) -> Result<()> {
    client
        .batch_execute(
            "ALTER TABLE shot ADD PRIMARY KEY (attempt);
             CREATE TABLE processed (id uuid PRIMARY KEY)",
        )
        .await?;
    Ok(())
}

/// Decides, inserts the shot unless it exists, and publishes the fact in both cases.
pub async fn fire(context: &mut HandlerContext<'_>, shot: FireAt) -> Result<()> {
    let tx = context.client.transaction().await?;
    let fact = business::decide(&tx, shot).await?;
    tx.execute_typed(
        "INSERT INTO shot (attempt, player, hit) VALUES ($1, $2, $3)
         ON CONFLICT (attempt) DO NOTHING",
        &[
            (&fact.attempt, Type::UUID),
            (&fact.player, Type::INT4),
            (&fact.hit, Type::BOOL),
        ],
    )
    .await?;
    context.hazard.commit(tx).await?;
    context.state.publish(fact.message(fact.attempt)?);
    Ok(())
}

/// Moves the target unless this move was already made.
pub async fn move_target(context: &mut HandlerContext<'_>, order: MoveTarget) -> Result<()> {
    let tx = context.client.transaction().await?;
    let is_new = mark(&tx, order.order).await?;
    if is_new {
        business::move_target(&tx, &order).await?;
    }
    context.hazard.commit(tx).await
}

/// Counts the hit unless the filter drops the message as a duplicate.
pub async fn count(context: &mut HandlerContext<'_>, id: Uuid, fact: Fact) -> Result<()> {
    let is_new = mark(&*context.client, id).await?;
    if is_new {
        let tx = context.client.transaction().await?;
        business::count_hit(&tx, &fact).await?;
        context.hazard.mid_transaction().await?;
        tx.commit().await?;
    }
    context.hazard.after_commit()?;
    Ok(())
}

/// Marks an id as processed. Returns false when it was already marked.
async fn mark(client: &impl GenericClient, id: Uuid) -> Result<bool> {
    let marked = client
        .execute_typed(
            "INSERT INTO processed (id) VALUES ($1) ON CONFLICT DO NOTHING",
            &[(&id, Type::UUID)],
        )
        .await?;
    Ok(marked == 1)
}
