//! The drivers of Python.

use anyhow::{Result, anyhow, bail, ensure};
use idem_drivers::{Program, install};
use idem_spec::{Cell, Driver, Saved};
use idem_testkit::Database;

use crate::{Known, ensure_passes_all};

/// asyncpg does not send a value that has not the type of the parameter.
pub const ASYNCPG: [Known<'static>; 1] = [(
    "batches/text_that_is_no_uuid_fails_the_uuid_batch",
    "invalid UUID 'm-1'",
)];

#[tokio::test]
async fn psycopg_passes_the_cases() -> Result<()> {
    let db = Database::with_idem("drivers_psycopg").await?;
    ensure_passes_all(&mut Program::start(install::python("psycopg")?, &db)?, &[]).await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn asyncpg_passes_the_cases() -> Result<()> {
    let db = Database::with_idem("drivers_asyncpg").await?;
    let mut driver = Program::start(install::python("asyncpg")?, &db)?;
    ensure_passes_all(&mut driver, &ASYNCPG).await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn sqlalchemy_core_passes_the_cases() -> Result<()> {
    let db = Database::with_idem("drivers_sqlalchemy_core").await?;
    ensure_passes_all(
        &mut Program::start(install::python_orm("sqlalchemy_core")?, &db)?,
        &[],
    )
    .await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn sqlalchemy_session_passes_the_cases() -> Result<()> {
    let db = Database::with_idem("drivers_sqlalchemy_session").await?;
    ensure_passes_all(
        &mut Program::start(install::python_orm("sqlalchemy_session")?, &db)?,
        &[],
    )
    .await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn sqlalchemy_async_passes_the_cases() -> Result<()> {
    let db = Database::with_idem("drivers_sqlalchemy_async").await?;
    let mut driver = Program::start(install::python_orm("sqlalchemy_async")?, &db)?;
    ensure_passes_all(&mut driver, &ASYNCPG).await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn django_passes_the_cases() -> Result<()> {
    let db = Database::with_idem("drivers_django").await?;
    ensure_passes_all(
        &mut Program::start(install::python_orm("django")?, &db)?,
        &[],
    )
    .await
}

/// The package executes the statements of the cases, most of them with its methods.
#[tokio::test]
async fn idem_pg_passes_the_cases() -> Result<()> {
    let db = Database::with_idem("drivers_idem_pg").await?;
    let mut driver = Program::start(install::python_package_driver()?, &db)?;
    ensure_passes_all(&mut driver, &[]).await?;
    let saved = Saved::new();
    let counted = driver.execute("first", "SELECT method_calls", &[], &saved);
    let counted = counted.await?.map_err(|refusal| anyhow!("{refusal:?}"))?;
    let Some(Cell::Decoded(calls)) = counted.first().and_then(|row| row.first()) else {
        bail!("no number of calls: {counted:?}");
    };
    println!("methods have executed {calls} statements");
    ensure!(
        calls.as_u64() > Some(400),
        "methods have executed {calls} statements only"
    );
    Ok(())
}
