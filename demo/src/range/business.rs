//! The business tables of the range, and the statements that the handlers of all systems share.

use std::collections::BTreeMap;

use anyhow::Result;
use tokio_postgres::{Client, GenericClient, types::Type};

use super::message::{Fact, FireAt, MoveTarget};

/// Drops and creates the tables in this schema, and inserts the targets and the players. The schema
/// must be the first one in the search path.
pub async fn set_up(client: &Client, schema: &str, players: u32, positions: &[i32]) -> Result<()> {
    client
        .batch_execute(&format!(
            "SET client_min_messages = warning;
             DROP SCHEMA IF EXISTS {schema} CASCADE;
             CREATE SCHEMA {schema};
             CREATE TABLE {schema}.target (id int PRIMARY KEY, position int NOT NULL);
             CREATE TABLE {schema}.shot (
                 attempt uuid NOT NULL, player int NOT NULL, hit boolean NOT NULL
             );
             CREATE TABLE {schema}.board (player int PRIMARY KEY, hits int NOT NULL);
             -- The attempts that the board has counted. Only the verdict reads this table.
             CREATE TABLE {schema}.counted (attempt uuid NOT NULL);"
        ))
        .await?;
    client
        .execute(
            "INSERT INTO target
             SELECT n - 1, position FROM unnest($1::int[]) WITH ORDINALITY t (position, n)",
            &[&positions],
        )
        .await?;
    client
        .execute(
            "INSERT INTO board SELECT n, 0 FROM generate_series(0, $1::int - 1) n",
            &[&i32::try_from(players)?],
        )
        .await?;
    Ok(())
}

/// Decides whether a shot hit, by the position that its target has *now*.
pub async fn decide(client: &impl GenericClient, shot: FireAt) -> Result<Fact> {
    let position: i32 = client
        .query_typed_one(
            "SELECT position FROM target WHERE id = $1",
            &[(&shot.target, Type::INT4)],
        )
        .await?
        .try_get(0)?;
    Ok(Fact {
        attempt: shot.attempt,
        player: shot.player,
        target: shot.target,
        aim: shot.aim,
        position,
        hit: shot.aim == position,
    })
}

/// Inserts the shot and its result.
pub async fn keep_shot(client: &impl GenericClient, fact: &Fact) -> Result<()> {
    client
        .execute_typed(
            "INSERT INTO shot (attempt, player, hit) VALUES ($1, $2, $3)",
            &[
                (&fact.attempt, Type::UUID),
                (&fact.player, Type::INT4),
                (&fact.hit, Type::BOOL),
            ],
        )
        .await?;
    Ok(())
}

/// Moves a target to the position of the order.
pub async fn move_target(client: &impl GenericClient, order: &MoveTarget) -> Result<()> {
    client
        .execute_typed(
            "UPDATE target SET position = $2 WHERE id = $1",
            &[(&order.target, Type::INT4), (&order.position, Type::INT4)],
        )
        .await?;
    Ok(())
}

/// Counts a hit. One statement writes both tables, so that the list of counted attempts always
/// agrees with the board.
pub async fn count_hit(client: &impl GenericClient, fact: &Fact) -> Result<()> {
    client
        .execute_typed(
            "WITH noted AS (INSERT INTO counted (attempt) VALUES ($2))
             UPDATE board SET hits = hits + 1 WHERE player = $1",
            &[(&fact.player, Type::INT4), (&fact.attempt, Type::UUID)],
        )
        .await?;
    Ok(())
}

/// Returns the number of hits of each player, as the board shows it.
pub async fn hits(client: &Client) -> Result<BTreeMap<i32, i64>> {
    client
        .query("SELECT player, hits::bigint FROM board", &[])
        .await?
        .iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
        .collect()
}
