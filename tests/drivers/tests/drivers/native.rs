//! The drivers that are packages of Debian.

use anyhow::Result;
use idem_drivers::{Program, install};
use idem_testkit::Database;

use crate::{Known, ensure_passes_all};

/// pgx converts the elements to the type of the parameter, and finds the error itself.
pub const PGX: Known<'static> = (
    "batches/text_that_is_no_uuid_fails_the_uuid_batch",
    "cannot parse UUID m-1",
);

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn dbd_pg_passes_the_cases() -> Result<()> {
    let db = Database::with_idem("drivers_dbd_pg").await?;
    ensure_passes_all(&mut Program::start(install::perl()?, &db)?, &[]).await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn ruby_pg_passes_the_cases() -> Result<()> {
    let db = Database::with_idem("drivers_ruby_pg").await?;
    ensure_passes_all(&mut Program::start(install::ruby()?, &db)?, &[]).await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn pdo_passes_the_cases() -> Result<()> {
    let db = Database::with_idem("drivers_pdo").await?;
    ensure_passes_all(&mut Program::start(install::php()?, &db)?, &[]).await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn pgx_passes_the_cases() -> Result<()> {
    let db = Database::with_idem("drivers_pgx").await?;
    ensure_passes_all(&mut Program::start(install::go("pgx")?, &db)?, &[PGX]).await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn database_sql_passes_the_cases() -> Result<()> {
    let db = Database::with_idem("drivers_database_sql").await?;
    let mut driver = Program::start(install::go("database_sql")?, &db)?;
    ensure_passes_all(&mut driver, &[PGX]).await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn pgjdbc_passes_the_cases() -> Result<()> {
    let db = Database::with_idem("drivers_pgjdbc").await?;
    ensure_passes_all(&mut Program::start(install::java("pgjdbc")?, &db)?, &[]).await
}

/// A plain transaction is `@Transactional`, and one with an option is a `TransactionTemplate`.
#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn spring_passes_the_cases() -> Result<()> {
    let db = Database::with_idem("drivers_spring").await?;
    ensure_passes_all(&mut Program::start(install::java("spring")?, &db)?, &[]).await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn libpq_pipeline_passes_the_cases() -> Result<()> {
    let db = Database::with_idem("drivers_libpq_pipeline").await?;
    ensure_passes_all(&mut Program::start(install::c()?, &db)?, &[]).await
}
