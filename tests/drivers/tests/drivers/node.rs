//! The drivers of Node.js.

use anyhow::Result;
use idem_drivers::{Program, install};
use idem_testkit::Database;

use crate::{Known, ensure_passes_all};

/// postgres.js writes each argument for a JSON parameter as JSON, and null as NULL.
pub const POSTGRES_JS: [Known<'static>; 2] = [
    (
        "effects/effects_that_are_no_objects_fail",
        "effects must not be null",
    ),
    ("sends/text_that_is_no_json_fails", "expected error 22P02"),
];

#[tokio::test]
async fn node_postgres_passes_the_cases() -> Result<()> {
    let db = Database::with_idem("drivers_node_postgres").await?;
    ensure_passes_all(&mut Program::start(install::node("pg")?, &db)?, &[]).await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn postgres_js_passes_the_cases() -> Result<()> {
    let db = Database::with_idem("drivers_postgres_js").await?;
    let mut driver = Program::start(install::node("postgres")?, &db)?;
    ensure_passes_all(&mut driver, &POSTGRES_JS).await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn drizzle_passes_the_cases() -> Result<()> {
    let db = Database::with_idem("drivers_drizzle").await?;
    let mut driver = Program::start(install::node_orm("drizzle")?, &db)?;
    ensure_passes_all(&mut driver, &[]).await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn knex_passes_the_cases() -> Result<()> {
    let db = Database::with_idem("drivers_knex").await?;
    ensure_passes_all(&mut Program::start(install::node_orm("knex")?, &db)?, &[]).await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn kysely_passes_the_cases() -> Result<()> {
    let db = Database::with_idem("drivers_kysely").await?;
    let mut driver = Program::start(install::node_orm("kysely")?, &db)?;
    ensure_passes_all(&mut driver, &[]).await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn prisma_passes_the_cases() -> Result<()> {
    let db = Database::with_idem("drivers_prisma").await?;
    let mut driver = Program::start(install::node_orm("prisma")?, &db)?;
    ensure_passes_all(&mut driver, &[]).await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn typeorm_passes_the_cases() -> Result<()> {
    let db = Database::with_idem("drivers_typeorm").await?;
    let mut driver = Program::start(install::node_orm("typeorm")?, &db)?;
    ensure_passes_all(&mut driver, &[]).await
}
